// The viewer of audits. The address after # is the state; all elements are built from it, and texts are text nodes.
"use strict";
(() => {
  const data = JSON.parse(CONTENT);
  const { audits, group, label, index, pixels } = data;
  const two = audits.length > 1;
  const CHUNK = 44;
  const PRINTED = 1000;
  const KEYS = ["attack", "model", "group", "predicted", "outcome", "clean", "change", "finding", "low", "high", "sort"];
  const form = document.querySelector("form");
  const byId = (id) => document.getElementById(id);
  const names = Object.keys(audits[0].names).filter((name) => audits.every((audit) => name in audit.names));
  const main = names.includes("all") ? "all" : names[0];
  const singles = audits.map((audit) => audit.attacks);
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const bare = (share) => (100 * share).toFixed(1);
  const points = (share) => (share === null ? "–" : `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(1)}`);
  const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
  const className = (number) => (number < 0 ? "no prediction" : data.classes[number]);
  const groupName = (number) => `${data.kind} ${data.groups[number]}`;
  const under = (name) => (name === "all" ? "under all attacks" : name === "clean" ? "without an attack" : `under ${name}`);

  // Elements

  const make = (tag, given = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(given)) {
      if (key in element && key !== "role") element[key] = value;
      else element.setAttribute(key, value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  };
  const scroller = (name, table) =>
    make("div", { className: "scroll", role: "group", tabIndex: 0, "aria-label": name }, table);
  const table = (name, heads, rows, kind) => {
    const cells = heads.map(([text, style]) => make("th", { scope: "col", className: style || "", textContent: text, title: text }));
    const head = make("thead", {}, make("tr", {}, ...cells));
    const caption = make("caption", { className: "unseen", textContent: name });
    return scroller(name, make("table", { className: kind }, caption, head, make("tbody", {}, ...rows)));
  };
  const link = (text, changes, title) => make("a", { href: address(changes), textContent: text, ...(title ? { title } : {}) });

  // State

  const state = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    const offered = (key, held) => {
      const { options } = form.elements[key] ?? {};
      if (!options) return key === "view" || Number.isFinite(Number(held));
      return key === "attack" || [...options].some((option) => option.value === held);
    };
    const kept = (key) => (offered(key, given.get(key)) ? (given.get(key) ?? "") : "");
    return Object.fromEntries([...KEYS, "image", "view"].map((key) => [key, kept(key)]));
  };
  const address = (changes) => {
    const kept = Object.entries(changes).filter(([, value]) => value !== "" && value !== null && value !== undefined);
    return `#${new URLSearchParams(kept)}`;
  };
  let shown = null;
  const go = (changes, replace = false) => {
    const target = address({ ...state(), ...changes });
    if (replace) location.replace(target);
    else location.hash = target;
  };

  // Outcomes of images

  const attackOf = (now) => (names.includes(now.attack) ? now.attack : main);
  const modelOf = (now) => (now.model === "1" && two ? 1 : 0);
  const prediction = (model, name, at) => audits[model].names[name].prediction[at];
  const correct = (model, name, at) => prediction(model, name, at) === label[at];
  const value = (model, attack, column, at) => {
    const found = audits[model].rows[attack][column];
    return found ? found[at] : null;
  };
  const margin = (model, name, at) => {
    let lowest = null;
    for (const attack of audits[model].names[name].members) {
      const number = value(model, attack, "margin", at);
      if (number !== null && (lowest === null || number < lowest)) lowest = number;
    }
    return lowest;
  };
  const firstSuccess = (model, at) => singles[model].find((attack) => !correct(model, attack, at));
  const onlyBy = (model, name, at) => {
    const { members } = audits[model].names[name];
    const others = singles[model].filter((attack) => !members.includes(attack));
    return !correct(model, name, at) && others.every((attack) => correct(model, attack, at));
  };
  const hasFinding = (() => {
    const found = audits.map((audit) => {
      const places = {};
      for (const { findings } of Object.values(audit.rows)) {
        for (const [name, list] of Object.entries(findings)) list.forEach((at) => (places[name] ??= new Set()).add(at));
      }
      return places;
    });
    return (model, name, at) => (found[model][name] ? found[model][name].has(at) : false);
  })();
  const changed = (name, at) => {
    const [before, after] = [correct(0, name, at), correct(1, name, at)];
    return before === after ? "" : before ? "lost" : "gained";
  };
  const changeOfMargin = (name, at) => {
    const [before, after] = [margin(0, name, at), margin(1, name, at)];
    return before === null || after === null ? null : after - before;
  };

  const tests = (now) => {
    const [name, model] = [attackOf(now), modelOf(now)];
    const decided = audits[model].names[name].prediction;
    const [ofGroup, asClass, low, high] = [now.group, now.predicted, now.low, now.high].map(Number);
    const outcomes = {
      wrong: (at) => decided[at] !== label[at],
      right: (at) => decided[at] === label[at],
      first: (at) => audits[model].names[name].members.includes(firstSuccess(model, at)),
      only: (at) => onlyBy(model, name, at),
    };
    const known = {
      group: (at) => group[at] === ofGroup,
      predicted: (at) => decided[at] === asClass,
      outcome: outcomes[now.outcome],
      clean: audits[model].names.clean && ((at) => correct(model, "clean", at) === (now.clean === "right")),
      change: two && ((at) => changed(name, at) === now.change),
      finding: (at) => hasFinding(model, now.finding, at),
      low: (at) => (margin(model, name, at) ?? -Infinity) >= low,
      high: (at) => (margin(model, name, at) ?? Infinity) <= high,
    };
    return Object.keys(known).filter((key) => now[key] !== "" && known[key]).map((key) => known[key]);
  };
  const sorted = (now, places) => {
    const [name, model] = [attackOf(now), modelOf(now)];
    const by = { margin: (at) => margin(model, name, at), change: (at) => (two ? changeOfMargin(name, at) : null) }[now.sort];
    if (!by) return places;
    const keys = new Map(places.map((at) => [at, by(at) ?? Infinity]));
    return places.sort((one, other) => keys.get(one) - keys.get(other) || one - other);
  };
  const select = (now) => {
    const wanted = tests(now);
    return sorted(now, [...label.keys()].filter((at) => wanted.every((test) => test(at))));
  };

  // Pixels

  const places = Object.fromEntries(
    Object.entries(pixels.places).map(([kind, list]) => [kind, new Map(list.map((at, number) => [at, number]))]),
  );
  const tile = (kind, at, size, name) => {
    const longest = Math.max(pixels.width, pixels.height);
    const [width, height] = [(size * pixels.width) / longest, (size * pixels.height) / longest];
    const number = places[kind]?.get(at);
    const element = make("span", { className: "tile", role: "img", "aria-label": name });
    element.style.width = `${width}px`;
    element.style.height = `${height}px`;
    if (number === undefined) {
      element.classList.add("none");
      return element;
    }
    const within = number % pixels.tiles;
    const [column, row] = [within % pixels.columns, Math.floor(within / pixels.columns)];
    element.style.backgroundImage = `url("images/${kind}-${Math.floor(number / pixels.tiles)}.webp")`;
    element.style.backgroundSize = `${width * pixels.columns}px auto`;
    element.style.backgroundPosition = `${-column * width}px ${-row * height}px`;
    return element;
  };

  // The classes

  const bar = (correctOf, low, high) => {
    const [fill, whisker] = [make("i"), make("b")];
    fill.style.width = percent(correctOf).replace(" ", "");
    whisker.style.left = percent(low).replace(" ", "");
    whisker.style.width = percent(high - low).replace(" ", "");
    return make("span", { className: "bar", "aria-hidden": "true" }, fill, whisker);
  };
  const accuracyCell = (model, name, number) => {
    const found = audits[model].names[name];
    const share = found.correct[number] / data.sizes[number];
    const span = `${bare(found.low[number])}–${bare(found.high[number])}`;
    return make("td", {}, bare(share), two ? null : bar(share, found.low[number], found.high[number]), make("small", { textContent: span }));
  };
  const confusionLinks = (name, number) =>
    audits[0].names[name].confusions[number].slice(0, 3).map(([predicted, count]) =>
      link(`${className(predicted)} (${count.toLocaleString("en")})`, { attack: name, group: number, predicted, outcome: "wrong" },
        `${data.groups[number]} misclassified as ${className(predicted)}`));
  const changeCells = (name, number) => {
    const found = data.changes[name];
    const count = (kind) =>
      make("td", {}, found[kind][number]
        ? link(found[kind][number].toLocaleString("en"), { attack: name, group: number, change: kind, sort: "change" })
        : "0");
    const span = `${points(found.low[number])} to ${points(found.high[number])}, p ${found.adjusted[number] < 0.001 ? "< 0.001" : found.adjusted[number].toFixed(3)}`;
    return [make("td", {}, points(found.difference[number]), make("small", { textContent: span })), count("lost"), count("gained")];
  };
  const classTable = (name) => {
    const present = [...data.sizes.keys()].filter((number) => data.sizes[number]);
    const accuracy = (model, number) => audits[model].names[name].correct[number] / data.sizes[number];
    present.sort((one, other) => accuracy(two ? 1 : 0, one) - accuracy(two ? 1 : 0, other) || one - other);
    const clean = "clean" in audits[0].names && name !== "clean" && !two;
    const heads = [[data.kind], ["n"], ...(clean ? [["clean, %"]] : [])];
    heads.push(...audits.map((audit) => [two ? `${audit.name}, %` : `correct ${under(name)}, % [interval]`]));
    heads.push(...(two ? [["change [interval]"], ["lost"], ["gained"]] : [["misclassified as (images)", "names"]]));
    const rows = present.map((number, place) =>
      make("tr", { className: place ? "" : "weak" },
        make("th", { scope: "row" }, link(data.groups[number], { attack: name, group: number, sort: two ? "change" : "margin" })),
        make("td", { textContent: data.sizes[number].toLocaleString("en") }),
        ...(clean ? [make("td", { textContent: bare(audits[0].names.clean.correct[number] / data.sizes[number]) })] : []),
        ...audits.map((_, model) => accuracyCell(model, name, number)),
        ...(two ? changeCells(name, number) : [make("td", { className: "names" }, ...confusionLinks(name, number))])));
    return table(`Accuracy by ${data.kind}, ${under(name)}`, heads, rows, "list");
  };
  const matrix = (model, name) => {
    const columns = data.classes.map((_, number) => number);
    const found = audits[model].names[name];
    const largest = Math.max(1, ...found.confusions.flat().map(([, count]) => count));
    const heads = [["true"], ...columns.map((number) => [className(number)])];
    const rows = data.groups.map((text, number) => {
      const counts = new Map(found.confusions[number]);
      const cells = columns.map((predicted) => {
        const count = counts.get(predicted) || 0;
        if (!count) return make("td", data.kind === "class" && predicted === number ? { className: "right", textContent: found.correct[number] } : {});
        const cell = make("td", {}, link(count, { attack: name, model: model || "", group: number, predicted, outcome: "wrong" },
          `${text} misclassified as ${className(predicted)}`));
        cell.style.setProperty("--share", `${Math.round(8 + 34 * (count / largest) ** 0.7)}%`);
        return cell;
      });
      return make("tr", {}, make("th", { scope: "row", textContent: text, title: text }), ...cells);
    });
    return table(`Confusions ${under(name)}${two ? `, ${audits[model].name}` : ""}`, heads, rows, "matrix");
  };
  const overview = (now) => {
    const name = attackOf(now);
    const parts = [];
    if (two) {
      parts.push(make("h2", { textContent: `What changed ${under(name)}` }));
      parts.push(...data.changes[name].sentences.map((text) => make("p", { className: "paragraph", textContent: text })));
      const counts = ["lost", "gained"].map((kind) => [kind, data.changes[name][kind].reduce((sum, count) => sum + count, 0)]);
      parts.push(make("p", { className: "paragraph" }, ...counts.flatMap(([kind, count]) =>
        [link(`${counted(count, "image")} ${kind}`, { attack: name, change: kind, sort: "change" }), kind === "lost" ? ", " : ". "]),
        `Lost: correct in ${audits[0].name}, misclassified in ${audits[1].name}; gained: the reverse.`));
    }
    parts.push(make("h2", { textContent: `${data.kind === "class" ? "Classes" : `Groups (${data.kind})`} ${under(name)}, weakest ${two ? `of ${audits[1].name} ` : ""}first` }));
    parts.push(classTable(name));
    const strongest = audits[two ? 1 : 0].strongest;
    const links = make("p", { className: "note" }, link("All images", { attack: name, view: "images" }), ". ",
      link("Misclassified images", { attack: name, outcome: "wrong", sort: "margin" }), ". ");
    if (strongest && !audits[0].cascade) {
      links.append("Strongest attack: ", strongest, "; ", link(`images misclassified under ${strongest} only`, { attack: strongest, model: two ? 1 : "", outcome: "only", sort: "margin" }), ".");
    } else if (audits[0].cascade) {
      const model = two ? 1 : 0;
      const attacks = singles[model].filter((attack) => attack !== "clean");
      links.append(`First attack that succeeded${two ? ` on ${audits[1].name}` : ""} (images): `, ...attacks.flatMap((attack, place) => [place ? ", " : "", link(
        `${attack} (${label.filter((_, at) => firstSuccess(model, at) === attack).length.toLocaleString("en")})`,
        { attack, model: model || "", outcome: "first", sort: "margin" })]), ".");
    }
    parts.push(links);
    if (data.classes.length <= 20 && data.groups.length <= 20) {
      parts.push(make("h2", { textContent: "Confusions" }));
      parts.push(make("div", { className: "pair two" }, ...audits.map((audit, model) =>
        make("div", { className: "panel" }, two ? make("h3", { textContent: audit.name }) : null, matrix(model, name)))));
      parts.push(make("p", { className: "note", textContent: "Rows are true classes. Numbers of misclassified images, linked to them; grey: correct ones." }));
    }
    byId("overview").replaceChildren(...parts);
  };

  // The images

  let found = [];
  let observer = null;
  const describe = (now, at) => {
    const [name, model] = [attackOf(now), modelOf(now)];
    const seen = audits.map((_, number) => prediction(number, name, at));
    const texts = seen.map((number) => (number === label[at] ? "correct" : className(number)));
    return { wrong: seen[model] !== label[at], text: two ? texts.join(" → ") : texts[0] };
  };
  const thumb = (now, at) => {
    const { wrong, text } = describe(now, at);
    const name = `Image ${index[at]}, ${className(label[at])}: ${text}`;
    const button = make("button", { type: "button", className: wrong ? "thumb wrong" : "thumb", tabIndex: -1, "aria-label": name, title: name },
      tile("clean", at, 64, ""), make("span", { textContent: text }));
    button.firstChild.removeAttribute("role");
    button.firstChild.removeAttribute("aria-label");
    button.dataset.at = at;
    return button;
  };
  const appendChunk = (now) => {
    const grid = byId("grid");
    const start = grid.children.length * CHUNK;
    const part = found.slice(start, start + CHUNK);
    if (!part.length) return false;
    grid.append(make("div", { className: "chunk" }, ...part.map((at) => thumb(now, at))));
    if (!start) grid.querySelector(".thumb").tabIndex = 0;
    return start + part.length < found.length;
  };
  const described = (now) => {
    const [name, model] = [attackOf(now), modelOf(now)];
    const parts = [
      now.group && groupName(now.group),
      now.predicted && `predicted as ${className(Number(now.predicted))}`,
      `${{ wrong: "misclassified ", right: "correct ", first: "misclassified first ", only: "misclassified only " }[now.outcome] ?? ""}${under(name)}`,
      now.clean && `${now.clean === "wrong" ? "misclassified" : "correct"} without an attack`,
      now.change,
      now.finding && data.findings[now.finding],
      now.low && `margin from ${now.low}`,
      now.high && `margin to ${now.high}`,
      two && !now.change && `model ${audits[model].name}`,
    ];
    return parts.filter(Boolean).join(", ");
  };
  const gallery = (now) => {
    found = select(now);
    byId("found").textContent = counted(found.length, "image");
    const order = { margin: "by margin, lowest first", change: "by change of margin, largest loss first" }[now.sort] || "by index";
    byId("about").textContent = `${described(now)}; sorted ${order}.${two ? ` Below each image: ${audits[0].name} → ${audits[1].name}.` : ""}`;
    byId("grid").replaceChildren();
    observer?.disconnect();
    if (appendChunk(now)) {
      observer = new IntersectionObserver((entries) => {
        if (entries.some((entry) => entry.isIntersecting) && appendChunk(now)) {
          observer.unobserve(byId("more"));
          observer.observe(byId("more"));
        }
      }, { rootMargin: "900px" });
      observer.observe(byId("more"));
    }
  };
  const isOpen = (now) => now.view === "images" || KEYS.some((key) => !["attack", "model", "sort"].includes(key) && now[key] !== "") || now.image !== "";

  // One image

  const verdict = (model, at) => {
    const attack = firstSuccess(model, at);
    if (!attack) return "Correct under every attack.";
    const predicted = className(prediction(model, attack, at));
    if (attack === "clean") return `Misclassified as ${predicted} without an attack.`;
    const numbers = ["steps", "passes"].map((column) => [column, value(model, attack, column, at)]).filter(([, number]) => number !== null);
    const after = numbers.map(([column, number]) => counted(number, { steps: "step", passes: "pass" }[column])).join(" and ");
    return `First misclassified by ${attack}, as ${predicted}${after ? `, after ${after}` : ""}.`;
  };
  const isSaved = (model) => Object.keys(places).some((kind) => kind.startsWith(`adversarial-${model}-`));
  const attackRows = (model, at) =>
    singles[model].map((attack, number) => {
      const key = `${model}-${number}`;
      const ran = prediction(model, attack, at) === label[at] || value(model, attack, "prediction", at) !== null;
      const wrong = !correct(model, attack, at);
      const seen = value(model, attack, "prediction", at);
      const cell = (column, show = (number) => number.toLocaleString("en")) => {
        const held = value(model, attack, column, at);
        return make("td", { textContent: held === null ? "–" : show(held) });
      };
      const picture = (kind, text) => make("td", {}, places[`${kind}-${key}`]?.has(at) ? tile(`${kind}-${key}`, at, 64, `${text} of ${attack}`) : "–");
      return make("tr", {},
        make("th", { scope: "row", textContent: attack }),
        make("td", { className: wrong ? "weak" : "", textContent: ran ? className(seen ?? prediction(model, attack, at)) : "not run" }),
        ...(isSaved(model) ? [picture("adversarial", "Adversarial image"), picture("difference", "Difference")] : []),
        cell("margin", (number) => number.toFixed(2).replace("-", "−")),
        cell("confidence", percent), cell("steps"), cell("passes"));
    });
  const neighbours = (now, at) => {
    const [name, model] = [attackOf(now), modelOf(now)];
    const predicted = prediction(model, name, at);
    const wanted = { ...state(), ...Object.fromEntries(KEYS.map((key) => [key, ""])), attack: name, model: now.model, group: group[at], predicted, image: "" };
    const others = select({ ...wanted, group: String(group[at]), predicted: String(predicted), sort: "margin", view: "" }).filter((other) => other !== at);
    const text = predicted === label[at] ? `correct ${under(name)}` : `predicted as ${className(predicted)} ${under(name)}`;
    if (!others.length) return [];
    const near = others.slice(0, 8).map((other) => {
      const button = thumb(now, other);
      button.tabIndex = 0;
      return button;
    });
    const all = link(`All ${counted(others.length + 1, "image")}`, { attack: name, model: now.model, group: group[at], predicted, sort: "margin" });
    return [make("h3", { textContent: `Others of ${groupName(group[at])}, ${text}` }), make("div", { className: "chunk" }, ...near), make("p", { className: "note" }, all)];
  };
  const openImage = (now, at) => {
    const dialog = byId("image");
    const position = found.indexOf(at);
    const button = (text, step) => {
      const target = found[position + step];
      return make("button", { type: "button", textContent: text, disabled: position < 0 || target === undefined, onclick: () => go({ image: index[target] }, true) });
    };
    const heads = (model) => [["attack"], ["predicted"], ...(isSaved(model) ? [["adversarial"], ["difference"]] : []),
      ["margin"], ["confidence"], ["steps"], ["passes"]];
    const factors = Object.values(pixels.factors).map((factor) => factor.toFixed(factor < 10 ? 1 : 0));
    const amplified = factors.length ? `Differences are around grey, amplified ${[...new Set(factors)].join(", ")} times.` : "";
    const tables = audits.flatMap((audit, model) => [
      two ? make("h3", { textContent: audit.name }) : null,
      make("p", { className: "paragraph", textContent: verdict(model, at) }),
      table(`Attacks on image ${index[at]}${two ? `, ${audit.name}` : ""}`, heads(model), attackRows(model, at), "list"),
    ]);
    const where = position < 0 ? "" : `${(position + 1).toLocaleString("en")} of ${found.length.toLocaleString("en")}`;
    const name = `Image ${index[at]}, class ${className(label[at])}${data.kind === "class" ? "" : `, ${groupName(group[at])}`}`;
    dialog.replaceChildren(...[
      make("div", { className: "bar-top" },
        make("h2", { id: "which", textContent: name }),
        make("span", { className: "note", textContent: where }),
        button("← Previous", -1), button("Next →", 1),
        make("button", { type: "button", textContent: "Close", onclick: () => dialog.close() })),
      make("div", { className: "first" }, tile("clean", at, 160, `Clean image ${index[at]} of ${className(label[at])}`), make("div", {}, ...tables.filter(Boolean))),
      amplified ? make("p", { className: "note", textContent: amplified }) : null,
      ...neighbours(now, at),
    ].filter(Boolean));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };

  // Controls and keys

  const fill = () => {
    const any = ["", "any"];
    const choices = {
      attack: names.map((name) => [name === main ? "" : name, name === "all" ? "all together" : name === audits[0].strongest && name !== "clean" ? `${name} (strongest)` : name]),
      model: audits.map((audit, model) => [model ? "1" : "", audit.name]),
      group: [any, ...data.groups.map((text, number) => [String(number), text])],
      predicted: [any, ...data.classes.map((text, number) => [String(number), text])],
      outcome: [any, ["wrong", "misclassified"], ["right", "correct"], ["first", "first by this attack"], ...(audits[0].cascade ? [] : [["only", "only by this attack"]])],
      clean: [any, ["wrong", "misclassified"], ["right", "correct"]],
      change: [any, ["lost", "lost"], ["gained", "gained"]],
      finding: [any, ...Object.entries(data.findings)],
      sort: [["", "index"], ["margin", "margin"], ...(two ? [["change", "change of margin"]] : [])],
    };
    for (const [key, options] of Object.entries(choices)) {
      form.elements[key].append(...options.map(([held, text]) => make("option", { value: held, textContent: text })));
    }
    const recorded = Object.keys(data.findings).some((name) => audits.some((_, model) => label.some((_one, at) => hasFinding(model, name, at))));
    const hidden = { model: !two, change: !two, finding: !recorded, clean: !names.includes("clean") };
    for (const [key, hide] of Object.entries(hidden)) form.elements[key].closest("label").hidden = hide;
    form.hidden = false;
  };
  const move = (event, buttons, at) => {
    const here = buttons[at].getBoundingClientRect();
    const inRow = (button, sign) => sign * (button.getBoundingClientRect().top - here.top) > 5 && Math.abs(button.getBoundingClientRect().left - here.left) < 5;
    const target = {
      ArrowRight: () => at + 1,
      ArrowLeft: () => at - 1,
      ArrowDown: () => buttons.findIndex((button, place) => place > at && inRow(button, 1)),
      ArrowUp: () => buttons.findLastIndex((button, place) => place < at && inRow(button, -1)),
      Home: () => 0,
      End: () => buttons.length - 1,
    }[event.key]?.();
    if (target === undefined || !buttons[target]) return;
    event.preventDefault();
    buttons[at].tabIndex = -1;
    buttons[target].tabIndex = 0;
    buttons[target].focus();
  };
  byId("grid").addEventListener("keydown", (event) => {
    const buttons = [...byId("grid").querySelectorAll(".thumb")];
    const at = buttons.indexOf(document.activeElement);
    if (at >= 0) move(event, buttons, at);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".thumb");
    if (button) go({ image: index[button.dataset.at] }, byId("image").open);
  });
  byId("image").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const target = found[found.indexOf(label.length && index.indexOf(Number(state().image))) + (step || 0)];
    if (step && target !== undefined) go({ image: index[target] }, true);
  });
  byId("image").addEventListener("close", () => {
    if (state().image !== "") go({ image: "" }, true);
  });
  form.addEventListener("change", () => {
    const held = Object.fromEntries(KEYS.map((key) => [key, form.elements[key].value]));
    const narrowed = KEYS.some((key) => !["attack", "model"].includes(key) && held[key] !== "");
    go({ ...held, view: isOpen(state()) || narrowed ? "images" : "" });
  });
  form.addEventListener("submit", (event) => event.preventDefault());

  const render = () => {
    if (location.hash === "#content") return;
    const now = state();
    const at = now.image === "" ? -1 : index.indexOf(Number(now.image));
    const rest = JSON.stringify({ ...now, image: "" });
    const open = isOpen(now);
    for (const key of KEYS) form.elements[key].value = now[key];
    form.elements.attack.value = attackOf(now) === main ? "" : attackOf(now);
    byId("overview").hidden = open;
    byId("images").hidden = !open;
    document.body.classList.toggle("open", open);
    if (rest !== shown) {
      if (open) gallery(now);
      else overview(now);
      if (shown !== null && !document.activeElement?.closest("form")) {
        scrollTo(0, 0);
        if (open) byId("found").focus({ preventScroll: true });
      }
    }
    shown = rest;
    if (at >= 0) openImage(now, at);
    else if (byId("image").open) {
      byId("image").close();
    }
  };
  addEventListener("hashchange", render);
  addEventListener("beforeprint", () => {
    while (!byId("images").hidden && byId("grid").children.length * CHUNK < PRINTED && appendChunk(state()));
  });
  fill();
  render();
})();
