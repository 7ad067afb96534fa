// What the user chose and what is remembered: sampling, drafting, system message, key. Knows the panel and the browser's
// storage; does not know requests beyond their parameters.

import { label, t } from "./strings.js";

/** Parameter, lowest, highest, step, default (null: left to the server when empty), whether it has a slider. */
const NUMBERS = [
  ["temperature", 0, 2, 0.05, 0, true],
  ["top_p", 0.05, 1, 0.05, 1, true],
  ["max_tokens", 1, 131072, 1, 1024, false],
  ["seed", 0, 9007199254740991, 1, null, false],
  ["top_k", 0, 1000, 1, 0, false],
  ["min_p", 0, 1, 0.01, 0, false],
  ["repetition_penalty", 0.1, 10, 0.05, 1, false],
];
const PLAIN = new Set(["temperature", "top_p", "max_tokens", "seed"]);
const NEUTRAL = { top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1 };

/** Read a remembered value; `otherwise` where there is none, or no storage. */
export function recall(storage, name, otherwise) {
  try {
    return JSON.parse(window[storage].getItem(`sooner.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Remember a value; null forgets it. A full or forbidden storage is no reason to stop. */
export function remember(storage, name, value) {
  try {
    if (value === null) window[storage].removeItem(`sooner.${name}`);
    else window[storage].setItem(`sooner.${name}`, JSON.stringify(value));
  } catch {
    // private windows and full disks: the page works, it only forgets
  }
}

/** The panel. `form` holds its fields; every change is remembered. */
export class Settings {
  constructor(form) {
    this.form = form;
    build(form.querySelector("#numbers"));
    this.fill(recall("localStorage", "settings", {}));
    form.elements.key.value = recall("sessionStorage", "key", "");
    form.addEventListener("input", (event) => this.changed(event.target));
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  get key() {
    return this.form.elements.key.value.trim();
  }

  set key(value) {
    this.form.elements.key.value = value;
    remember("sessionStorage", "key", value || null);
  }

  get drafting() {
    return this.form.elements.draft.checked;
  }

  get system() {
    return this.form.elements.system.value.trim();
  }

  /** The parameters of a request, those that say nothing left out. Draws a seed, so that the text can be had again. */
  sampling() {
    const chosen = {};
    for (const [name] of NUMBERS) {
      const { value } = this.form.elements[name];
      if (value !== "" && Number(value) !== NEUTRAL[name]) chosen[name] = Number(value);
    }
    chosen.temperature ??= 0;
    if (chosen.temperature > 0) chosen.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
    if (!this.drafting) chosen.draft = "none";
    return chosen;
  }

  /** Forget everything but the key. */
  reset() {
    this.fill({});
    remember("localStorage", "settings", null);
  }

  fill(values) {
    const { elements } = this.form;
    elements.draft.checked = values.draft ?? true;
    elements.system.value = values.system ?? "";
    for (const [name, , , , standard] of NUMBERS) {
      elements[name].value = values[name] ?? standard ?? "";
      const slider = this.form.querySelector(`[data-slides="${name}"]`);
      if (slider) slider.value = elements[name].value;
    }
  }

  changed(field) {
    if (field.name === "key") return remember("sessionStorage", "key", this.key || null);
    if (field.dataset.slides) this.form.elements[field.dataset.slides].value = field.value;
    const slider = this.form.querySelector(`[data-slides="${field.name}"]`);
    if (slider) slider.value = field.value;
    const values = { draft: this.drafting, system: this.form.elements.system.value };
    for (const [name] of NUMBERS) values[name] = this.form.elements[name].value;
    return remember("localStorage", "settings", values);
  }
}

function build(place) {
  const more = document.createElement("details");
  more.append(Object.assign(document.createElement("summary"), { textContent: t("more") }));
  more.firstChild.dataset.t = "more";
  for (const row of NUMBERS) (PLAIN.has(row[0]) ? place : more).append(numberField(...row));
  place.append(more);
}

function numberField(name, low, high, step, standard, slides) {
  const field = document.createElement("div");
  field.className = "field number";
  const title = Object.assign(document.createElement("label"), { htmlFor: `f-${name}` });
  title.dataset.t = name;
  const input = Object.assign(document.createElement("input"), { type: "number", name, id: `f-${name}`, min: low, max: high });
  input.step = step === 0.05 || step === 0.01 ? "any" : step;
  input.setAttribute("aria-describedby", `h-${name}`);
  field.append(title, input);
  if (slides) {
    const slider = Object.assign(document.createElement("input"), { type: "range", min: low, max: high, step });
    slider.dataset.slides = name;
    label(slider, name);
    field.append(slider);
  }
  const help = Object.assign(document.createElement("small"), { id: `h-${name}` });
  help.dataset.t = `${name}Help`;
  field.append(help);
  if (standard !== null) input.placeholder = standard;
  else input.dataset.p = `${name}None`;
  return field;
}
