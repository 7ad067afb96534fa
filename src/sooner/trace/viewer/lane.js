// The time lane: one strip per run, time to the right; above, what each step wrote and what it drafted in vain; below,
// what its time went into. Zooms and pans. Knows runs and a canvas.

import { above, colour, pen } from "./dom.js";
import { shade } from "./look.js";
import { number } from "./strings.js";
import { TARGET } from "./trace.js";

export const PHASES = ["draft", "scoring", "verify", "overhead"];

const [BAND, AXIS, GAP] = [18, 18, 6];
const NARROW = 3; // a step of fewer pixels is drawn as a share of its pixel

export class Lane {
  /** `pick(side, step)` is called for clicks, `peek(side, step or null)` for the pointer; `hand` shows the time. */
  constructor(canvas, hand, { pick, peek }) {
    Object.assign(this, { canvas, hand, pick, peek, runs: [], view: [0, 1], chosen: null, playhead: null, paints: {} });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.drag(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerleave", () => peek(0, null));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  show(runs) {
    this.runs = runs.filter((run) => run.steps);
    this.canvas.style.height = `${this.runs.length > 1 ? 14 : 9}rem`;
    this.paint();
    this.fit();
  }

  /** Take the colours of the theme anew. */
  paint() {
    for (const name of ["ink", "soft", "line", "bubble", "accent", ...PHASES, "c0", "c1", "c2", "c3", "c4", "c5"]) this.paints[name] = colour(name);
  }

  fit() {
    const [first, last] = this.bounds;
    const length = last - Math.max(first, 0);
    this.look(Math.max(first, -0.03 * length), last + 0.01 * length);
  }

  /** All there is: from where the prompt began to be read to the last token. */
  get bounds() {
    const begun = this.runs.map((run) => run.began(0));
    return [Math.min(0, ...begun), Math.max(1, ...this.runs.map((run) => run.duration))];
  }

  look(from, to) {
    const [first, last] = this.bounds;
    const most = 1.02 * (last - first);
    const length = Math.max(0.5, Math.min(to - from, most));
    const start = Math.max(first - 0.01 * length, Math.min(from, last + 0.01 * length - length));
    this.view = [start, start + length];
    this.draw();
  }

  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    const [from, to] = this.view;
    this.look(at - (at - from) * factor, at + (to - at) * factor);
  }

  pan(share) {
    const [from, to] = this.view;
    this.look(from + share * (to - from), to + share * (to - from));
  }

  /** Mark a step, and move the view so that it is seen. */
  choose(side, step) {
    this.chosen = [side, step];
    const run = this.runs[side];
    if (run?.steps) {
      const [from, to] = this.view;
      const [begun, ended] = [run.began(step), run.ended(step)];
      const most = 0.9 * (to - from);
      if (ended > to || ended < from) {
        const middle = Math.max(begun, (begun + ended - most) / 2);
        this.look(middle - 0.3 * (to - from), middle + 0.7 * (to - from));
      }
    }
    this.draw();
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.render());
  }

  render() {
    const { context, width, height } = pen(this.canvas);
    if (!this.runs.length || !width) return;
    this.width = width;
    const tall = (height - AXIS - GAP * (this.runs.length - 1)) / this.runs.length;
    this.tall = tall;
    this.axis(context, width, height);
    this.runs.forEach((run, side) => this.strip(context, run, side, side * (tall + GAP), tall));
    this.point(this.playhead);
  }

  /** Show the time of the playback, or none (null). */
  point(ms) {
    this.playhead = ms;
    const x = ms === null || !this.width ? -1 : this.x(ms);
    this.hand.hidden = x < 0 || x > this.width;
    this.hand.style.transform = `translateX(${x}px)`;
  }

  x(ms) {
    return ((ms - this.view[0]) / (this.view[1] - this.view[0])) * this.width;
  }

  axis(context, width, height) {
    const length = this.view[1] - this.view[0];
    const rough = length / Math.max(2, width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const tick = power * [1, 2, 5, 10].find((step) => step * power >= rough);
    context.font = "11px system-ui, sans-serif";
    for (let i = Math.ceil(this.view[0] / tick); i * tick <= this.view[1]; i += 1) {
      const at = i === 0 ? 0 : i * tick; // no minus zero
      const x = this.x(at);
      context.fillStyle = this.paints.line;
      context.fillRect(x, 0, 1, height - AXIS + 4);
      context.fillStyle = this.paints.soft;
      const text = tick >= 100 ? `${number(at / 1000, tick >= 1000 ? 0 : 1)} s` : `${number(at, tick < 1 ? 1 : 0)} ms`;
      context.textAlign = x < 16 ? "left" : x > width - 24 ? "right" : "center";
      context.fillText(text, x, height - 3);
    }
  }

  strip(context, run, side, top, tall) {
    const [from, to] = this.view;
    const first = Math.max(0, above(run.end, from + run.end[0]) - 1);
    const floor = top + tall - BAND - 3;
    const most = run.most ??= Math.max(2, ...chunked(run.nodes.map((count, step) => Math.max(count + 1, run.first[step + 1] - run.first[step]))));
    const cell = Math.max(1.5, Math.min(9, (floor - top) / most));
    let column = null;
    for (let step = first; step < run.steps && run.began(step) < to; step += 1) {
      const [left, right] = [this.x(run.began(step)), this.x(run.ended(step))];
      const chosen = this.chosen?.[0] === side && this.chosen[1] === step;
      if (right - left >= NARROW || chosen) {
        if (chosen) this.stress(context, left, right, top, tall);
        this.cells(context, run, step, left, Math.max(2, right - left), floor, cell);
        this.phases(context, run, step, left, Math.max(2, right - left), floor + 3);
        continue;
      }
      if (column?.x !== Math.floor(left)) {
        this.column(context, column, floor, cell);
        column = { x: Math.floor(left), own: 0, kept: 0, lost: 0, count: 0, parts: [0, 0, 0, 0] };
      }
      this.gather(column, run, step);
    }
    this.column(context, column, floor, cell);
  }

  stress(context, left, right, top, tall) {
    context.fillStyle = this.paints.bubble;
    context.fillRect(left - 3, top, Math.max(2, right - left) + 6, tall);
    context.fillStyle = this.paints.ink;
    context.fillRect(left - 1, top + tall - 1.5, Math.max(2, right - left) + 2, 1.5);
  }

  /** A step's tokens, from the floor up: kept guesses round, its own square, guesses in vain hollow. */
  cells(context, run, step, left, width, floor, cell) {
    const wide = Math.min(width - 1, 14);
    const size = cell > 3 ? cell - 1.5 : cell - 0.5;
    let y = floor - cell;
    for (let i = run.first[step]; i < run.first[step + 1]; i += 1, y -= cell) {
      const source = run.name(i);
      const own = source === TARGET;
      context.fillStyle = own ? this.paints.ink : this.paints[`c${shade(source)}`];
      context.beginPath();
      context.roundRect(left, y, wide, size, own ? 0 : Math.min(wide, size) / 2);
      context.fill();
    }
    context.strokeStyle = this.paints.soft;
    context.globalAlpha = 0.45;
    for (let i = run.kept[step]; i < run.nodes[step] && y > floor - 60 * cell; i += 1, y -= cell) {
      if (wide > 3 && size > 3) context.strokeRect(left + 0.5, y + 0.5, wide - 1, size - 1);
      else context.strokeRect(left, y + size / 2, wide, 0.5);
    }
    context.globalAlpha = 1;
  }

  phases(context, run, step, left, width, top) {
    const parts = [run.draft[step], run.score[step], run.verify[step], run.overhead[step]];
    const all = parts.reduce((sum, part) => sum + part, 0) || 1;
    let x = left;
    parts.forEach((part, i) => {
      context.fillStyle = this.paints[PHASES[i]];
      const wide = (part / all) * (width > 4 ? width - 1 : width);
      const high = i === 1 ? BAND - 6 : BAND - 2; // the short phases are taller, so that they are seen beside the long one
      context.fillRect(x, top + (BAND - 2 - high), Math.max(part > 0 && i !== 1 ? 0.5 : 0, wide), high);
      x += wide;
    });
  }

  gather(column, run, step) {
    const written = run.first[step + 1] - run.first[step];
    const kept = Math.min(run.kept[step], written);
    column.own += written - kept;
    column.kept += kept;
    column.lost += run.nodes[step] - run.kept[step];
    column.count += 1;
    [run.draft, run.score, run.verify, run.overhead].forEach((list, i) => (column.parts[i] += list[step]));
  }

  /** Steps that share a pixel, by their mean. */
  column(context, column, floor, cell) {
    if (!column) return;
    const { x, own, kept, lost, count, parts } = column;
    let y = floor;
    for (const [amount, paint, alpha] of [[kept, "c0", 1], [own, "ink", 1], [lost, "soft", 0.3]]) {
      const high = (amount / count) * cell;
      context.fillStyle = this.paints[paint];
      context.globalAlpha = alpha;
      context.fillRect(x, y - high, 1, high);
      y -= high;
    }
    context.globalAlpha = 1;
    const all = parts.reduce((sum, part) => sum + part, 0) || 1;
    let top = floor + 3;
    parts.forEach((part, i) => {
      context.fillStyle = this.paints[PHASES[i]];
      context.fillRect(x, top, 1, (part / all) * (BAND - 2));
      top += (part / all) * (BAND - 2);
    });
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const ms = this.view[0] + (x / box.width) * (this.view[1] - this.view[0]);
    const side = Math.max(0, Math.min(this.runs.length - 1, Math.floor((event.clientY - box.top) / (this.tall + GAP))));
    const run = this.runs[side];
    const step = run ? Math.min(run.steps - 1, above(run.end, ms + run.end[0])) : 0;
    return { ms, side, step: run && ms >= run.began(step) - 1 ? step : null };
  }

  wheel(event) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (!event.ctrlKey && !event.metaKey && !sideways) return; // the page scrolls
    event.preventDefault();
    if (sideways) this.pan((event.deltaX || event.deltaY) / this.width);
    else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 100), this.at(event).ms);
  }

  drag(event) {
    if (event.button !== 0) return;
    this.held = { x: event.clientX, view: this.view, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
    const release = () => {
      if (!this.held.moved) {
        const { side, step } = this.at(event);
        if (step !== null) this.pick(side, step);
      }
      this.held = null;
    };
    this.canvas.addEventListener("lostpointercapture", release, { once: true });
  }

  move(event) {
    const { held } = this;
    if (!held) {
      const { side, step } = this.at(event);
      return this.peek(side, step);
    }
    const moved = event.clientX - held.x;
    if (Math.abs(moved) > 3) held.moved = true;
    const shift = (-moved / this.width) * (held.view[1] - held.view[0]);
    if (held.moved) this.look(held.view[0] + shift, held.view[1] + shift);
    return undefined;
  }
}

/** The greatest of each thousand: a spread of all would be too many arguments. */
function chunked(values) {
  const greatest = [];
  for (let i = 0; i < values.length; i += 1000) greatest.push(Math.max(...values.slice(i, i + 1000)));
  return greatest;
}
