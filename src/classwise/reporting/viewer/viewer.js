// The viewer of audits. The address after # is the state; all elements are built from it, and texts are text nodes.
"use strict";
(() => {
  const data = JSON.parse(CONTENT);
  const { audits, group, label, index, pixels, groupings, crossings, files } = data;
  const two = audits.length > 1;
  const CHUNK = 44;
  const PRINTED = 1000;
  const CROSSED = 30; // largest number of columns of a table of crossings
  const KEYS = ["attack", "model", "group", "predicted", "outcome", "clean", "change", "finding", "noted", "low", "high", "named", "sort",
    ...groupings.map((_, number) => `g${number}`)];
  const form = document.querySelector("form");
  const byId = (id) => document.getElementById(id);
  const names = Object.keys(audits[0].names).filter((name) => audits.every((audit) => name in audit.names));
  const main = names.includes("all") ? "all" : names[0];
  const singles = audits.map((audit) => audit.attacks);
  const bare = (share) => (Math.round(1e11 * share) / 1e9 + 1e-10).toFixed(1); // halves are rounded up
  const percent = (share) => `${bare(share)} %`;
  const points = (share) => (share === null ? "–" : `${share < 0 ? "−" : "+"}${bare(Math.abs(share))}`);
  const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
  const className = (number) => (number < 0 ? "no prediction" : data.classes[number]);
  const groupName = (number) => `${data.kind} ${data.groups[number]}`;
  const fileOf = (at) => files?.[at] ?? "";
  const titleOf = (at) => [`Image ${index[at]}`, fileOf(at)].filter(Boolean).join(", ");
  const groupsOf = (at) => groupings.map(({ name, groups, ids }) => `${name} ${groups[ids[at]]}`);
  const under = (name) => (name === "all" ? "under all attacks" : name === "clean" ? "without an attack" : `under ${name}`);
  const failingUnder = (name) => (name === "all" ? "under at least one attack" : under(name));

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
      if (!options) return ["view", "named"].includes(key) || Number.isFinite(Number(held));
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

  // Notes and tags by index: those of files, and the changes, which the browser keeps until they are in the files

  const NOTES = `classwise notes ${data.notes.images} ${location.pathname}`;
  const EMPTY = { tags: [], text: "" };
  const HIDDEN = /[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu; // as in escape.py, but the line break
  const notes = new Map();
  const noteOf = (image) => notes.get(image) ?? EMPTY;
  const same = (one, other) => one.text === other.text && one.tags.join() === other.tags.join();
  const cleaned = ({ tags, text }) => {
    const plain = (given) => given.replace(HIDDEN, (hidden) => `⟨U+${hidden.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`).trim();
    return { tags: [...new Set(tags.map(plain).filter(Boolean))], text: plain(text) };
  };
  const joined = (one, other) => cleaned({
    tags: [...one.tags, ...other.tags],
    text: one.text.includes(other.text) ? one.text : other.text.includes(one.text) ? other.text : `${one.text}\n${other.text}`,
  });
  const join = (list) => list.forEach((note) => notes.set(note.index, joined(noteOf(note.index), note)));
  join(data.notes.notes);
  const inFiles = new Map(notes);
  const changes = () => [...notes].filter(([image, note]) => !same(note, inFiles.get(image) ?? EMPTY))
    .map(([image, note]) => ({ index: image, was: inFiles.get(image) ?? EMPTY, ...note }));
  let stored = true;
  try {
    for (const { index: image, was, ...note } of JSON.parse(localStorage.getItem(NOTES) ?? "[]")) {
      notes.set(image, same(noteOf(image), was) ? cleaned(note) : joined(noteOf(image), note));
    }
  } catch {
    stored = false;
  }
  const noted = () => [...notes].filter(([, note]) => !same(note, EMPTY)).sort(([one], [other]) => one - other);
  const tagsOf = (image) => [...noteOf(image).tags, ...(noteOf(image).text ? ["note"] : [])].join(", ");
  const notesFile = () => JSON.stringify({
    ...data.notes,
    notes: noted().map(([image, note]) => ({ index: image, name: fileOf(index.indexOf(image)), ...note })),
  }, null, 2);
  const notesIn = (text) => {
    const read = JSON.parse(text);
    if (read.schema_version !== data.notes.schema_version) throw new Error(`its schema_version is ${read.schema_version}, not ${data.notes.schema_version}`);
    if (read.images !== data.notes.images) throw new Error("it is on other images");
    const texts = (list) => list.every((part) => typeof part === "string");
    if (!read.notes.every((note) => Number.isInteger(note.index) && texts([...note.tags, note.text]))) throw new Error("it is damaged");
    return read.notes;
  };
  const showNotes = (message = "") => {
    try {
      localStorage.setItem(NOTES, JSON.stringify(changes()));
    } catch {
      stored = false;
    }
    const [all, unsaved] = [noted(), changes().length];
    byId("notes").querySelector("p").textContent = [message, `${counted(all.length, "image")} with notes or tags.`,
      unsaved ? `Changes of ${counted(unsaved, "image")} are only in this ${stored ? "browser" : "page"}, and not yet in the notes.json of the audit.` : ""].filter(Boolean).join(" ");
    byId("notes").querySelector("[name=export]").disabled = !all.length;
    const held = form.elements.noted.value;
    const tags = [...new Set(all.flatMap(([, note]) => note.tags))].sort();
    const options = [["", "any"], ["with", "with a note or tag"], ["without", "without"], ...tags.map((tag) => [`tag ${tag}`, `tag ${tag}`])];
    form.elements.noted.replaceChildren(...options.map(([value, text]) => make("option", { value, textContent: text })));
    form.elements.noted.value = options.some(([value]) => value === held) ? held : "";
    document.querySelectorAll(".thumb").forEach(mark);
  };
  const mark = (button) => {
    const text = tagsOf(index[button.dataset.at]);
    button.setAttribute("aria-label", [button.title, text].filter(Boolean).join(" "));
    button.querySelector(".tags")?.remove();
    if (text) button.append(make("span", { className: "tags", textContent: ` ${text}`, title: text }));
  };
  const noteFields = (at) => {
    const image = index[at];
    const given = noteOf(image);
    const tags = make("input", { value: given.tags.join(", "), autocomplete: "off" });
    const text = make("textarea", { value: given.text, rows: 2 });
    const changed = () => {
      notes.set(image, cleaned({ tags: tags.value.split(","), text: text.value }));
      showNotes();
    };
    for (const field of [tags, text]) field.addEventListener("input", changed);
    return make("div", { className: "controls" }, make("label", {}, "Tags, separated by commas ", tags), make("label", {}, "Note ", text));
  };
  byId("notes").querySelector("[name=export]").addEventListener("click", () => {
    const url = URL.createObjectURL(new Blob([`${notesFile()}\n`], { type: "application/json" }));
    make("a", { href: url, download: "notes.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  });
  byId("notes").querySelector("[name=import]").addEventListener("click", () => byId("notes").querySelector("input").click());
  byId("notes").querySelector("input").addEventListener("change", async ({ target }) => {
    const [file] = target.files;
    if (!file) return;
    try {
      const read = notesIn(await file.text());
      join(read);
      showNotes(`${counted(read.length, "note")} read from ${file.name}.`);
    } catch (error) {
      showNotes(`${file.name} is not read: ${error instanceof SyntaxError || error instanceof TypeError ? "it is damaged" : error.message}.`);
    }
    target.value = "";
  });

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
  const hasMargin = (attack) => audits.some(({ rows }) => (attack ? [rows[attack]] : Object.values(rows)).some((columns) => columns?.margin));
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
      noted: (at) => {
        const note = noteOf(index[at]);
        return now.noted.startsWith("tag ") ? note.tags.includes(now.noted.slice(4)) : same(note, EMPTY) === (now.noted === "without");
      },
      low: (at) => (margin(model, name, at) ?? -Infinity) >= low,
      high: (at) => (margin(model, name, at) ?? Infinity) <= high,
      named: (at) => String(index[at]) === now.named.trim() || fileOf(at).toLowerCase().includes(now.named.trim().toLowerCase()),
      ...Object.fromEntries(groupings.map(({ ids }, number) => [`g${number}`, (at) => ids[at] === Number(now[`g${number}`])])),
    };
    return Object.keys(known).filter((key) => now[key] !== "" && known[key]).map((key) => known[key]);
  };
  const sorted = (now, places) => {
    const [name, model] = [attackOf(now), modelOf(now)];
    const by = { margin: (at) => margin(model, name, at), clean: (at) => margin(model, "clean", at), change: (at) => (two ? changeOfMargin(name, at) : null) }[now.sort];
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
    const element = make("span", { className: "tile", ...(name ? { role: "img", "aria-label": name } : {}) });
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
    return table(`Confusions ${failingUnder(name)}${two ? `, ${audits[model].name}` : ""}`, heads, rows, "matrix");
  };
  const weakness = ({ name, weakness: found }, model) => {
    if (!found.title) return [];
    const shown = found.clearest.map(([image, text]) => [index.indexOf(image), text]).filter(([at]) => at >= 0);
    const figures = shown.map(([at, text]) => {
      const button = thumb({ ...state(), attack: "all", model: model ? "1" : "" }, at);
      button.tabIndex = 0;
      return make("figure", {}, button, make("figcaption", { textContent: text }));
    });
    const texts = [...found.sentences, ...(shown.length ? [found.heading] : [])];
    return [
      make("h2", { textContent: two ? `${name}: ${found.title}` : found.title }),
      ...texts.map((text) => make("p", { className: "paragraph", textContent: text })),
      make("div", { className: "clearest" }, ...figures),
      make("p", { className: "note", textContent: found.note }),
    ];
  };

  // Crossings of the groups of several groupings: the classes or groups of the audit come first

  const sides = [{ name: data.kind, groups: data.groups, key: "group" },
    ...groupings.map(({ name, groups }, number) => ({ name, groups, key: `g${number}` }))];
  const cellOf = (() => {
    const cells = new Map((crossings.keys ?? []).map((key, cell) => [key, cell]));
    return (held) => cells.get(sides.map(({ key }) => held[key] ?? "").join(","));
  })();
  const cellsOf = (rows, columns) => sides[rows].groups.map((_, row) =>
    sides[columns].groups.map((_one, column) => cellOf({ [sides[rows].key]: row, [sides[columns].key]: column })));
  // Not where one grouping divides the other, as superclasses do, or the crossings were too many
  const isCrossed = (rows, columns) => {
    const cells = cellsOf(rows, columns);
    const several = (line) => line.filter((cell) => cell !== undefined).length > 1;
    return cells.some(several) && cells[0].some((_, column) => several(cells.map((line) => line[column])));
  };
  const accuracyOf = (model, name, cell) => {
    const { correct: right, low, high } = crossings.accuracy[model][name];
    return { share: right[cell] / crossings.n[cell], right: right[cell], span: `${bare(low[cell])}–${bare(high[cell])}` };
  };
  const crossed = (now) => {
    const chosen = sides.filter(({ key }) => now[key] !== "");
    const cell = chosen.length && crossings.keys ? cellOf(now) : undefined;
    if (cell === undefined) return null;
    const which = chosen.map(({ name, groups, key }) => `${name} ${groups[now[key]]}`).join(", ");
    const texts = audits.flatMap((audit, model) => [...new Set([attackOf(now), "clean"])].filter((name) => name in audit.names).map((name) => {
      const { share, right, span } = accuracyOf(model, name, cell);
      return `${two ? `${audit.name}, ` : ""}${under(name)} ${right.toLocaleString("en")} of ${crossings.n[cell].toLocaleString("en")} correct (${percent(share)}, interval ${span})`;
    }));
    return make("p", { className: "paragraph", textContent: `${which}: ${texts.join("; ")}.` });
  };
  const crossing = (now, place, rows = 0, wanted = -1, focused = "") => {
    const name = attackOf(now);
    const partners = (number) => [...sides.keys()].filter((other) => other !== number && sides[other].groups.length <= CROSSED && isCrossed(number, other));
    const offered = partners(rows);
    const columns = offered.includes(wanted) ? wanted : offered[0];
    if (columns === undefined) return place;
    const choose = (text, held, numbers, changed) => {
      const select = make("select", { onchange: () => changed(Number(select.value)) },
        ...numbers.map((number) => make("option", { value: number, textContent: sides[number].name, selected: number === held })));
      return make("label", {}, `${text} `, select);
    };
    const [down, across] = [sides[rows], sides[columns]];
    const cells = cellsOf(rows, columns);
    const anew = (changes) => crossing(now, place, ...changes);
    const body = down.groups.map((text, row) => make("tr", {},
      make("th", { scope: "row" }, link(text, { attack: name, [down.key]: row, sort: two ? "change" : "margin" })),
      ...cells[row].map((cell, column) => {
        if (cell === undefined) return make("td", { textContent: "–" });
        const found = audits.map((_, model) => accuracyOf(model, name, cell));
        const held = { attack: name, [down.key]: row, [across.key]: column, sort: two ? "change" : "margin" };
        return make("td", {}, link(found.map(({ share }) => bare(share)).join(" → "), held),
          make("small", { textContent: `${found.map(({ span }) => span).join(" → ")}, n ${crossings.n[cell].toLocaleString("en")}` }));
      }))).filter((_, row) => cells[row].some((cell) => cell !== undefined));
    const title = `Accuracy by ${down.name} and ${across.name}, ${under(name)}`;
    const choices = [
      choose("Rows", rows, [...sides.keys()].filter((number) => partners(number).length), (held) => anew([held, columns, 0])),
      choose("Columns", columns, offered, (held) => anew([rows, held, 1])),
    ];
    place.replaceChildren(
      make("h2", { textContent: title }),
      make("div", { className: "controls crossing" }, ...choices),
      table(title, [[down.name], ...across.groups.map((text) => [text])], body, "list"),
      make("p", { className: "note", textContent: `Percent correct${two ? `, ${audits[0].name} → ${audits[1].name}` : ""}, with intervals and numbers of images. A cell opens its images.` }),
    );
    if (focused !== "") choices[focused].querySelector("select").focus();
    return place;
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
    if (name === "all") audits.forEach((audit, model) => parts.push(...weakness(audit, model)));
    if (groupings.length) parts.push(crossing(now, make("div")));
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
  // The saved images of the attacks that decide, in the order of the attacks
  const savedKinds = (now) => {
    const [name, model] = [attackOf(now), modelOf(now)];
    return audits[model].names[name].members.map((attack) => `adversarial-${model}-${singles[model].indexOf(attack)}`).filter((kind) => kind in places);
  };
  const thumb = (now, at) => {
    const { wrong, text } = describe(now, at);
    const name = `Image ${index[at]}, ${className(label[at])}: ${[fileOf(at), text].filter(Boolean).join(" ")}`;
    const file = fileOf(at).split("/").pop();
    const saved = savedKinds(now).find((kind) => places[kind].has(at));
    const tiles = ["clean", ...(saved ? [saved] : [])].map((kind) => tile(kind, at, 64));
    const button = make("button", { type: "button", className: wrong ? "thumb wrong" : "thumb", tabIndex: -1, title: name },
      make("span", { className: "tiles" }, ...tiles), ...(file ? [make("span", { className: "file", textContent: file }), " "] : []), make("span", { className: "seen", textContent: text }));
    button.dataset.at = at;
    mark(button);
    return button;
  };
  const chunk = (now, part) => make("div", { className: savedKinds(now).length ? "chunk pairs" : "chunk" }, ...part.map((at) => thumb(now, at)));
  const appendChunk = (now) => {
    const grid = byId("grid");
    const start = grid.children.length * CHUNK;
    const part = found.slice(start, start + CHUNK);
    if (!part.length) return false;
    grid.append(chunk(now, part));
    if (!start) grid.querySelector(".thumb").tabIndex = 0;
    return start + part.length < found.length;
  };
  const described = (now) => {
    const [name, model] = [attackOf(now), modelOf(now)];
    const parts = [
      now.group && groupName(now.group),
      ...groupings.map(({ name: of, groups }, number) => now[`g${number}`] && `${of} ${groups[now[`g${number}`]]}`),
      now.named && `name or index ${now.named}`,
      now.predicted && `predicted as ${className(Number(now.predicted))}`,
      `${{ wrong: "misclassified ", right: "correct ", first: "misclassified first ", only: "misclassified only " }[now.outcome] ?? ""}${["", "right"].includes(now.outcome) ? under(name) : failingUnder(name)}`,
      now.clean && `${now.clean === "wrong" ? "misclassified" : "correct"} without an attack`,
      now.change,
      now.finding && data.findings[now.finding],
      now.noted && (now.noted.startsWith("tag ") ? now.noted : `${now.noted} a note or tag`),
      now.low && `margin from ${now.low}`,
      now.high && `margin to ${now.high}`,
      two && !now.change && `model ${audits[model].name}`,
    ];
    return parts.filter(Boolean).join(", ");
  };
  const gallery = (now) => {
    found = select(now);
    byId("found").textContent = counted(found.length, "image");
    const order = { margin: "by margin, lowest first", clean: "by margin without an attack, lowest first", change: "by change of margin, largest loss first" }[now.sort] || "by index";
    byId("about").textContent = `${described(now)}; sorted ${order}.${two ? ` Below each image: ${audits[0].name} → ${audits[1].name}.` : ""}`;
    byId("crossed").replaceChildren(...[crossed(now)].filter(Boolean));
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
    const text = predicted === label[at] ? `correct ${under(name)}` : `predicted as ${className(predicted)} ${failingUnder(name)}`;
    if (!others.length) return [];
    const near = chunk(now, others.slice(0, 8));
    for (const button of near.children) button.tabIndex = 0;
    const all = link(`All ${counted(others.length + 1, "image")}`, { attack: name, model: now.model, group: group[at], predicted, sort: "margin" });
    return [make("h3", { textContent: `Others of ${groupName(group[at])}, ${text}` }), near, make("p", { className: "note" }, all)];
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
    const name = `${titleOf(at)}, class ${className(label[at])}${data.kind === "class" ? "" : `, ${groupName(group[at])}`}`;
    const groupsText = groupsOf(at).join(", ");
    dialog.replaceChildren(...[
      make("div", { className: "bar-top" },
        make("h2", { id: "which", textContent: name }),
        make("span", { className: "note", textContent: where }),
        button("← Previous", -1), button("Next →", 1),
        make("button", { type: "button", textContent: "Close", onclick: () => dialog.close() })),
      groupsText ? make("p", { className: "note", textContent: groupsText }) : null,
      make("div", { className: "first" }, tile("clean", at, 160, `Clean image ${index[at]} of ${className(label[at])}`), make("div", {}, ...tables.filter(Boolean))),
      amplified ? make("p", { className: "note", textContent: amplified }) : null,
      noteFields(at),
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
      sort: [["", "index"], ...(hasMargin() ? [["margin", "margin"]] : []), ...(hasMargin("clean") ? [["clean", "margin without an attack"]] : []), ...(two ? [["change", "change of margin"]] : [])],
    };
    groupings.forEach(({ name, groups }, number) => {
      const filter = make("label", {}, `${name[0].toUpperCase()}${name.slice(1)} `, make("select", { name: `g${number}` }));
      form.elements.predicted.closest("label").before(filter);
      choices[`g${number}`] = [any, ...groups.map((text, place) => [String(place), text])];
    });
    for (const [key, options] of Object.entries(choices)) {
      form.elements[key].append(...options.map(([held, text]) => make("option", { value: held, textContent: text })));
    }
    const recorded = Object.keys(data.findings).some((name) => audits.some((_, model) => label.some((_one, at) => hasFinding(model, name, at))));
    const hidden = { model: !two, change: !two, finding: !recorded, clean: !names.includes("clean"), low: !hasMargin(), high: !hasMargin() };
    for (const [key, hide] of Object.entries(hidden)) form.elements[key].closest("label").hidden = hide;
    form.hidden = byId("notes").hidden = false;
    showNotes();
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
    if (event.target.closest("input, textarea")) return;
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
