// Runs in a page: reports the violations of axe-core, clipped or tiny text of figures, and overflow.
(async () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  const shown = (element) => element.getClientRects().length > 0;
  const clipped = [], scales = [], scrollers = [];
  for (const svg of [...document.querySelectorAll("svg")].filter(shown)) {
    const box = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const at = text.getBoundingClientRect();
      const out = Math.max(box.left - at.left, at.right - box.right, box.top - at.top, at.bottom - box.bottom);
      if (out > 2) clipped.push(`${text.textContent} (${out.toFixed(0)} px, ${svg.getAttribute("aria-label")})`);
    }
    scales.push([box.width / svg.viewBox.baseVal.width, svg.getAttribute("aria-label")]);
  }
  for (const element of document.querySelectorAll("main *, header *")) {
    if (!shown(element) || element.closest("svg") || element.classList.contains("unseen")) continue;
    if (element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX !== "visible") {
      const labelled = element.tabIndex === 0 && element.getAttribute("aria-label");
      const cue = getComputedStyle(element).backgroundImage.includes("gradient");
      if (!labelled || !cue) scrollers.push(element.outerHTML.slice(0, 80));
    }
  }
  const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const found = await axe.run(document, { runOnly: tags, resultTypes: ["violations"] });
  const violations = found.violations.map((one) => `${one.id}: ${one.nodes.length} x ${one.nodes[0].html.slice(0, 120)}`);
  const page = document.documentElement;
  const overflow = page.scrollWidth - page.clientWidth;
  const dark = getComputedStyle(document.body).backgroundColor;
  parent.postMessage({ violations, clipped, scales, scrollers, overflow, dark, rules: found.passes.length }, "*");
})().catch((error) => parent.postMessage({ error: String(error) }, "*"));
