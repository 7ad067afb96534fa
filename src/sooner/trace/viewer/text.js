// The text, token by token, of one run or of two side by side. Only rows near the window have elements, so that a
// hundred thousand tokens scroll like a hundred. Knows runs and elements; does not know what the choice of a token does.

import { make } from "./dom.js";
import { look } from "./look.js";

const ROW = { alone: [160, 480], beside: [24, 64] }; // tokens of a row: at the next line's end after, at most

export class Text {
  /** `choose(side, token)` is called for clicks and keys, `peek(side, token or null)` for the pointer. */
  constructor(place, { choose, peek }) {
    Object.assign(this, { place, runs: [], rows: [], marked: [], at: null, differs: null });
    this.watcher = new IntersectionObserver((entries) => entries.forEach((entry) => this.turn(entry)), {
      root: place,
      rootMargin: "800px 0px",
    });
    place.addEventListener("click", (event) => this.hit(event, choose));
    place.addEventListener("pointerover", (event) => this.hit(event, peek));
    place.addEventListener("pointerleave", () => peek(0, null));
  }

  hit(event, act) {
    const token = event.target.closest?.(".token");
    if (token) act(Number(token.parentNode.dataset.side), Number(token.dataset.i));
  }

  /** Show runs; `differs`: the first position at which two part. */
  show(runs, differs = null) {
    Object.assign(this, { runs, differs, at: null });
    this.watcher.disconnect();
    this.rows = cut(runs, differs);
    const nodes = this.rows.map((row, i) => {
      row.node = make("div", "row");
      row.node.dataset.row = i;
      row.node.style.minHeight = `${row.guess}px`;
      return row.node;
    });
    this.place.replaceChildren(...nodes);
    this.place.scrollTop = 0;
    nodes.forEach((node) => this.watcher.observe(node));
  }

  /** A row came near the window, or went away from it. */
  turn({ target, isIntersecting }) {
    const row = this.rows[Number(target.dataset.row)];
    if (row?.node !== target || isIntersecting === row.filled) return;
    if (isIntersecting) this.fill(row);
    else this.empty(row);
  }

  fill(row) {
    row.filled = true;
    row.node.style.minHeight = "";
    row.node.classList.toggle("differs", this.differs !== null && row.end > this.differs);
    row.node.replaceChildren(...this.runs.map((run, side) => this.cell(run, side, row)));
    if (this.at) this.mark(...this.at);
  }

  empty(row) {
    row.filled = false;
    row.node.style.minHeight = `${row.node.offsetHeight}px`;
    row.node.replaceChildren();
  }

  cell(run, side, row) {
    const cell = make("div", "cell");
    cell.dataset.side = side;
    for (let i = row.start; i < Math.min(row.end, run.tokens); i += 1) {
      const node = make("span", `token ${look(run.name(i))}`, run.texts[i]);
      node.dataset.i = i;
      if (!run.texts[i] && run.pieces.known) {
        node.classList.add("silent");
        node.dataset.shown = run.pieces.shown(run.ids[i]); // drawn by the style sheet: no part of the text
      }
      if (fences(run)[i]) node.classList.add("code");
      if (i === this.differs) node.classList.add("first-difference");
      cell.append(node);
    }
    return cell;
  }

  /** Mark a token and its step; with `reveal`, bring it into view. */
  mark(side, token, reveal = false) {
    this.at = [side, token];
    if (reveal) this.reveal(token);
    for (const node of this.marked) node.classList.remove("here", "same-step");
    this.marked = [];
    const run = this.runs[side];
    if (!run) return;
    const step = run.stepOf(token);
    for (let i = run.first[step]; i < run.first[step + 1]; i += 1) this.put(side, i, i === token ? "here" : "same-step");
    this.runs.forEach((_, other) => other !== side && this.put(other, token, "here"));
  }

  put(side, token, name) {
    const node = this.node(side, token);
    if (!node) return;
    node.classList.add(name);
    this.marked.push(node);
  }

  node(side, token) {
    const row = this.rowOf(token);
    return row?.filled ? (row.node.children[side]?.children[token - row.start] ?? null) : null;
  }

  rowOf(token) {
    let [low, high] = [0, this.rows.length];
    while (low < high) {
      const half = (low + high) >> 1;
      if (this.rows[half].end <= token) low = half + 1;
      else high = half;
    }
    return this.rows[low];
  }

  reveal(token) {
    const row = this.rowOf(token);
    if (!row) return;
    if (!row.filled) this.fill(row);
    const node = this.node(0, token) ?? this.node(1, token);
    if (!node) return;
    const [inner, outer] = [node.getBoundingClientRect(), this.place.getBoundingClientRect()];
    if (inner.top < outer.top + 8) this.place.scrollTop -= outer.top + 24 - inner.top;
    else if (inner.bottom > outer.bottom - 8) this.place.scrollTop += inner.bottom - outer.bottom + 24;
  }
}

/** Which tokens are within a fenced block of code. */
export function fences(run) {
  if (run.fences) return run.fences;
  run.fences = new Uint8Array(run.tokens);
  let inside = false;
  run.texts.forEach((text, i) => {
    const marks = text.split("```").length - 1;
    run.fences[i] = inside || marks > 0;
    if (marks % 2) inside = !inside;
  });
  return run.fences;
}

/** Rows of tokens: they end with a line where they can, at the first difference, and in any case before long. */
function cut(runs, differs) {
  const most = Math.max(0, ...runs.map((run) => run.tokens));
  const [wanted, longest] = runs.length > 1 ? ROW.beside : ROW.alone;
  const letters = 100 / runs.length;
  const rows = [];
  let [start, lines, width] = [0, 1, 0];
  for (let i = 0; i < most; i += 1) {
    const text = runs[0].texts[i] ?? runs.at(-1).texts[i] ?? "";
    lines += text.split("\n").length - 1;
    width += text.length;
    const size = i + 1 - start;
    const ends = (size >= wanted && text.endsWith("\n")) || size >= longest || i + 1 === differs || i + 1 === most;
    if (!ends) continue;
    rows.push({ start, end: i + 1, guess: 28 * Math.max(lines, Math.ceil(width / letters)), filled: false });
    [start, lines, width] = [i + 1, 1, 0];
  }
  return rows;
}
