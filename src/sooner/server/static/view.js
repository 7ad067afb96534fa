// How turns look: a question, an answer that grows, a failure. Knows elements; does not know the server.

import { blocks, render } from "./markdown.js";
import { number, percent, t } from "./strings.js";

const seen = [];

/** The look of a drafter's marks: its place among those met so far, of five. */
function look(source) {
  if (!seen.includes(source)) seen.push(source);
  return `d${seen.indexOf(source) % 5}`;
}

/** An element with a class, text and children. */
export function make(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** Who speaks, for screen readers. */
function heading(key) {
  const node = make("h2", "unseen", t(key));
  node.dataset.t = key;
  return node;
}

/** A user's message. */
export function question(text) {
  const node = make("article", "turn question");
  node.append(heading("you"), make("div", "said", text));
  return node;
}

/** Writes slices of an answer's text, drafted runs in marked spans. */
export function emitter(answer) {
  return (parent, start, end) => {
    let at = start;
    for (let i = firstRun(answer.runs, start); i < answer.runs.length && answer.runs[i][0] < end; i += 1) {
      const [from, to, source] = answer.runs[i];
      const [low, high] = [Math.max(from, at), Math.min(to, end)];
      if (high <= low) continue;
      if (low > at) parent.append(answer.text.slice(at, low));
      const parts = answer.text.slice(low, high).split(INDENT);
      parent.append(...parts.map((part, i) => (i % 2 ? part : mark(part, source))));
      at = high;
    }
    if (end > at) parent.append(answer.text.slice(at, end));
  };
}

const INDENT = /(^\s+|\n[ \t]*)/; // space before a word or a line stays unmarked

function mark(text, source) {
  if (!text) return "";
  const node = make("span", `drafted ${look(source)}`, text);
  node.title = t("bySource", { name: source });
  return node;
}

function firstRun(runs, start) {
  let [low, high] = [0, runs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle][1] <= start) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** An answer's text as elements. Only its last two blocks are drawn anew when it grows. */
export class Prose {
  constructor(place, answer) {
    this.place = place;
    this.answer = answer;
    this.emit = emitter(answer);
    this.drawn = [];
  }

  update(open) {
    const { text } = this.answer;
    const again = this.drawn.splice(-2);
    const from = again.length ? again[0].start : (this.drawn.at(-1)?.end ?? 0);
    for (const { node } of again) node.remove();
    for (const block of blocks(text, from)) {
      const node = render(block, text, this.emit, open);
      this.place.append(node);
      this.drawn.push({ start: block.start, end: block.end, node });
    }
  }
}

/** An answer: prose, a line of figures, and what can be done with it. `deeds`: name to function. */
export class Reply {
  constructor(answer, deeds) {
    this.answer = answer;
    this.deeds = deeds;
    this.node = make("article", "turn answer");
    this.body = make("div", "prose");
    this.foot = make("div", "foot");
    this.node.append(heading("answer"), this.body, this.foot);
    this.prose = new Prose(this.body, answer);
    this.foot.append(make("span", "waiting", t("thinking")));
    this.node.setAttribute("aria-busy", "true");
  }

  grow() {
    if (this.answer.text && this.foot.firstChild) this.foot.replaceChildren();
    this.prose.update(true);
  }

  close() {
    this.prose.update(false);
    this.node.removeAttribute("aria-busy");
    if (!this.answer.text) this.body.replaceChildren(make("p", "hint", t("emptyAnswer")));
    this.summary();
  }

  /** The lines below the text, once it is complete. */
  summary(note = "") {
    if (this.node.hasAttribute("aria-busy")) return;
    const { answer } = this;
    const line = make("p", "figures", figures(answer));
    const warning = make("p", "warning", answer.speculation?.warning ?? "");
    const legend = make("p", "legend");
    for (const [name, count] of Object.entries(answer.kept).sort((one, other) => other[1] - one[1])) {
      legend.append(make("span", `drafted ${look(name)}`, t("tokensOf", { name, count: number(count) })));
    }
    const verdict = make("p", "verdict", note || verdictText(answer.verdict));
    if (answer.verdict && !note) verdict.classList.add(answer.verdict.same ? "good" : "bad");
    const actions = make("p", "actions");
    for (const [name, deed] of Object.entries(this.deeds)) {
      if (name === "check" && (!checkable(answer) || answer.verdict || note)) continue;
      const button = make("button", "plain", t(name));
      button.type = "button";
      button.dataset.deed = name;
      button.addEventListener("click", () => deed(button));
      actions.append(button);
    }
    this.foot.replaceChildren(...[line, warning, legend, verdict, actions].filter((part) => part.textContent));
  }
}

/** Whether plain decoding has to give the same text: it is whole, and its rule does not depend on the draft. */
function checkable(answer) {
  const { lossless, verify } = answer.speculation ?? {};
  const exact = lossless !== false && (answer.request.temperature === 0 || (verify ?? "coupled") === "coupled");
  return exact && !answer.plain && (answer.finish === "stop" || answer.finish === "length") && answer.tokens > 1;
}

function figures(answer) {
  const parts = [t("line", { tokens: number(answer.tokens), seconds: number(answer.seconds, 1) })];
  if (answer.speed) parts.push(t("lineSpeed", { speed: number(answer.speed, answer.speed < 10 ? 1 : 0) }));
  if (answer.plain) parts.push(t("plainLine"));
  else if (answer.perPass) {
    parts.push(t("linePass", { length: number(answer.perPass, 2) }));
    if (answer.saved > 0) parts.push(t("lineSaved", { percent: percent(answer.saved) }));
  }
  if (answer.request.seed !== undefined) parts.push(t("lineSeed", { seed: answer.request.seed }));
  if (answer.speculation?.lossless === false) parts.push(t("lossy", { rule: answer.speculation.verify ?? "" }));
  if (answer.finish === "stopped") parts.push(t("stopped"));
  if (answer.finish === "length") parts.push(t("cut"));
  return parts.join(" · ");
}

function verdictText(verdict) {
  if (!verdict) return "";
  if (!verdict.same) return t("different", { count: number(verdict.at) });
  const [plain, drafted] = [number(verdict.plainMs / 1000, 2), number(verdict.ms / 1000, 2)];
  const ratio = verdict.plainMs / verdict.ms;
  return ratio > 1 ? t("same", { ratio: number(ratio, 2), plain, drafted }) : t("slower", { plain, drafted });
}

/** A failure in plain words. `again`: what its button does. A request for a key has a field for it. */
export function failureCard(failure, again) {
  const node = make("div", "failure");
  node.setAttribute("role", "alert");
  const help = failure.kind === "keyWrong" ? "e_keyHelp" : `e_${failure.kind}Help`;
  node.append(make("p", "", make("b", "", t(`e_${failure.kind}`))));
  if (help in HELPS) node.lastChild.append(" ", t(help, failure.values));
  if (failure.detail && failure.kind !== "loading") node.append(make("p", "hint", t("e_detail", { text: failure.detail })));
  const form = make("form");
  const asks = failure.kind === "key" || failure.kind === "keyWrong";
  if (asks) {
    const field = Object.assign(make("input"), { type: "password", name: "key", required: true, autocomplete: "off" });
    field.setAttribute("aria-label", t("key"));
    field.placeholder = t("key");
    form.append(field);
  }
  if (failure.kind !== "loading") form.append(make("button", "solid", t(asks ? "unlock" : "retry")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    again(form.elements.key?.value.trim());
  });
  node.append(form);
  return node;
}

const HELPS = Object.fromEntries(
  ["network", "key", "busy", "loading", "closing", "slow", "long", "broken", "failed"].map((kind) => [`e_${kind}Help`, true]),
);

/** A sentence with `{marked}` parts, as an example of the marks. */
export function sample(place, text) {
  const parts = text.split(/[{}]/).map((part, i) => (i % 2 ? make("span", "drafted d0", part) : part));
  place.replaceChildren(...parts);
}
