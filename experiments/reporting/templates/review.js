"use strict";
// The page of `probattn review`. What is above `start` are pure functions, which tests run without a
// browser. Whatever comes from data goes into the page as text (textContent), never as HTML.

const PAGE = 60; // examples that are added at a time
const CUT = 300; // characters of a text that are shown before one asks for the whole

function percent(share) {
  return (100 * share).toFixed(1) + " %";
}

// Return a number in three digits, – for one that is missing.
function shown(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(4))) : "–";
}

function isAnswered(example, step) {
  return step.threshold !== null && example.confidence >= step.threshold;
}

// Return what the page says about a step of the slider.
function counts(step, total) {
  const answered = `${step.answered} of ${total} answered (${percent(step.answered / total)})`;
  const person = `${total - step.answered} to a person`;
  if (!step.answered) {
    return `${answered}; ${person}`;
  }
  const rate = percent(step.wrong / step.answered);
  const interval = `95 % interval ${percent(step.low)} to ${percent(step.high)}`;
  return `${answered}, ${step.wrong} of them wrong (${rate}; ${interval}); ${person}`;
}

// Return the examples that pass all filters; an empty filter passes all. Size 3 is "3 or more".
function chosen(examples, filters, step) {
  return examples.filter((example) => {
    if (filters.kind && !example.kinds.includes(filters.kind)) {
      return false;
    }
    const facts = {
      predicted: example.predicted,
      true: example.true,
      error: example.predicted === example.true ? "right" : "wrong",
      size: String(Math.min(example.size, 3)),
      who: step && isAnswered(example, step) ? "answered" : "person",
    };
    return Object.keys(facts).every((name) => !filters[name] || filters[name] === facts[name]);
  });
}

// Return examples, the least certain first; they come in the order of confidence.
function ordered(examples, measure) {
  if (measure !== "entropy" && measure !== "mutual_information") {
    return examples;
  }
  return [...examples].sort((one, other) => other[measure] - one[measure]);
}

// Return the examples that have a note as CSV, their label replaced by it.
function csv(columns, label, examples, notes) {
  const quoted = (cell) => '"' + String(cell).replaceAll('"', '""') + '"';
  const rows = examples
    .filter((example) => notes.has(example.number))
    .map((example) => example.cells.with(label, notes.get(example.number)));
  return [columns, ...rows].map((row) => row.map(quoted).join(",") + "\n").join("");
}

function start(page) {
  const find = (id) => page.getElementById(id);
  const about = JSON.parse(find("about").textContent);
  const examples = JSON.parse(find("data").textContent);
  const notes = new Map();
  const list = find("examples");
  const slider = find("threshold");
  const filters = find("filters");
  let found = examples;
  let isSaved = true;

  // Add a choice to a filter.
  function offer(which, name) {
    const entry = element("option", name);
    entry.value = name;
    filters.elements[which].append(entry);
  }

  function element(tag, text, ...children) {
    const made = page.createElement(tag);
    made.textContent = text;
    made.append(...children);
    return made;
  }

  const step = () => slider && about.steps[Number(slider.value)];

  function facts(example) {
    const rows = [["true", shownLabel(example.true)]];
    if (slider) {
      const names = example.set || [];
      const rest = example.size > names.length ? ` and ${example.size - names.length} more` : "";
      if (example.set) {
        rows.push(["set", (names.join(", ") || "none") + rest]);
      }
      rows.push(["entropy", shown(example.entropy)]);
      if ("mutual_information" in example) {
        rows.push(["mutual information", shown(example.mutual_information)]);
      }
    } else {
      const isFinite = example.low !== null && example.high !== null;
      const ends = `${shown(example.low)} to ${shown(example.high)}`;
      rows.push(["interval", isFinite ? ends : "any number: too few validation examples"]);
      rows.push(["standard deviation", shown(example.std)]);
    }
    if (example.notes) {
      rows.push(["notes", example.notes]);
    }
    if (example.kind === "row") {
      about.columns.forEach((column, place) => {
        if (place !== about.label) {
          rows.push([column, example.cells[place]]);
        }
      });
    }
    const made = element("dl", "");
    for (const [term, value] of rows) {
      made.append(element("dt", "", element("bdi", term)), element("dd", "", element("bdi", value)));
    }
    return made;
  }

  const shownLabel = (label) => (slider ? label : shown(label));

  function whole(text) {
    const made = element("p", text.length > CUT ? text.slice(0, CUT) + " … " : text);
    made.dir = "auto";
    if (text.length > CUT) {
      const button = element("button", "whole text");
      button.type = "button";
      button.addEventListener("click", () => {
        made.textContent = text;
        made.closest("li").focus();
      });
      made.append(button);
    }
    return made;
  }

  function card(example) {
    const made = element("li", "");
    made.tabIndex = -1;
    made.example = example;
    const certainty = slider ? `, ${percent(example.confidence)}` : "";
    const answer = element("bdi", shownLabel(example.predicted));
    made.append(element("h2", `Example ${example.number}: `, answer, certainty));
    made.append(element("span", ""));
    if (slider && example.predicted !== example.true) {
      const wrong = element("strong", " wrong");
      wrong.className = "wrong";
      made.append(wrong);
    }
    if (example.picture) {
      const image = element("img", "");
      image.alt = `Test example ${example.number}`;
      image.src = example.picture;
      made.append(image);
    }
    if (example.kind === "text") {
      made.append(whole(example.cells[0]));
    }
    const box = element("input", "");
    box.value = notes.get(example.number) || "";
    box.setAttribute("list", "classes");
    box.autocomplete = "off";
    box.addEventListener("input", () => note(example, box.value.trim()));
    made.append(facts(example), element("label", `Right label of ${example.number} `, box));
    return made;
  }

  function note(example, label) {
    if (label) {
      notes.set(example.number, label);
    } else {
      notes.delete(example.number);
    }
    isSaved = !notes.size;
    find("download").disabled = !notes.size;
    find("download").textContent = `Download labels (CSV): ${notes.size}`;
  }

  // Say who gets each example that is shown.
  function mark() {
    for (const made of list.children) {
      const goes = slider && !isAnswered(made.example, step());
      made.className = goes ? "person" : "";
      made.querySelector("span").textContent = slider ? (goes ? "to a person" : "answered") : "";
    }
  }

  function more() {
    const first = list.children.length;
    list.append(...found.slice(first, first + PAGE).map(card));
    find("more").hidden = list.children.length >= found.length;
    mark();
  }

  function refresh() {
    const choice = filters ? Object.fromEntries(new FormData(filters)) : {};
    found = ordered(chosen(examples, choice, step()), choice.measure);
    list.replaceChildren();
    more();
    if (list.firstElementChild) {
      list.firstElementChild.tabIndex = 0;
    }
    find("found").textContent = `${found.length} of ${examples.length} listed`;
  }

  function slide() {
    const threshold = step().threshold;
    const text = threshold === null ? "none is enough" : percent(threshold);
    find("shown").textContent = text;
    slider.setAttribute("aria-valuetext", text);
    find("counts").textContent = counts(step(), about.total);
    if (filters.elements.who.value) {
      refresh();
    } else {
      mark();
    }
  }

  // Focus the example that is `by` places after one, or the first.
  function move(made, by) {
    if (made && by > 0 && !made.nextElementSibling) {
      more();
    }
    const next = by > 0 ? made && made.nextElementSibling : made && made.previousElementSibling;
    const target = made ? next || made : list.firstElementChild;
    if (target) {
      for (const other of list.querySelectorAll("li[tabindex='0']")) {
        other.tabIndex = -1;
      }
      target.tabIndex = 0;
      target.focus();
      target.scrollIntoView({ block: "nearest" });
    }
  }

  page.addEventListener("keydown", (event) => {
    const target = event.target;
    const made = target.closest ? target.closest("li") : null;
    const isBox = made && target.tagName === "INPUT";
    const key = event.altKey || event.ctrlKey || event.metaKey || event.isComposing ? "" : event.key;
    if (isBox && key === "Enter") {
      move(made, 1);
    } else if (isBox && key === "Escape") {
      made.focus();
    } else if (target.matches && target.matches("input, select, button")) {
      return;
    } else if (key === "ArrowDown" || key === "j") {
      move(made, 1);
    } else if (key === "ArrowUp" || key === "k") {
      move(made, -1);
    } else if (key === "Enter" && made) {
      made.querySelector("input").focus();
    } else {
      return;
    }
    event.preventDefault();
  });

  list.addEventListener("focusin", (event) => {
    const made = event.target.closest("li");
    for (const other of list.querySelectorAll("li[tabindex='0']")) {
      other.tabIndex = other === made ? 0 : -1;
    }
    made.tabIndex = 0;
  });

  find("download").addEventListener("click", () => {
    const text = csv(about.columns, about.label, examples, notes);
    const link = page.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "labels.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000); // some browsers read it later
    isSaved = true;
  });

  page.defaultView.addEventListener("beforeunload", (event) => {
    if (!isSaved) {
      event.preventDefault();
    }
  });

  find("more").addEventListener("click", more);
  for (const name of about.classes) {
    const option = element("option", "");
    option.value = name;
    find("classes").append(option);
    for (const which of filters ? ["predicted", "true"] : []) {
      offer(which, name);
    }
  }
  for (const kind of filters ? about.kinds : []) {
    offer("kind", kind);
  }
  if (filters) {
    filters.addEventListener("change", refresh);
    slider.addEventListener("input", slide);
  }
  refresh();
  if (slider) {
    slide();
  }
}

if (typeof module === "object") {
  module.exports = { chosen, counts, csv, ordered };
} else {
  start(document);
}
