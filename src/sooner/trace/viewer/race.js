// Playback: a text at the times at which it was recorded, next to plain decoding of the same text (or to another run).
// Knows runs, a clock and two panes; does not know what else the page shows.

import { above, calm, make } from "./dom.js";
import { look } from "./look.js";
import { number, t } from "./strings.js";
import { fences } from "./text.js";
import { list } from "./trace.js";

const WINDOW = 600; // tokens that a pane holds: only its end is seen
const VERDICT = 0.6; // from this part of a step on, its guesses are shown as kept or lost
const FLASH = { lively: 30, calm: 250 }; // milliseconds below which guesses would only flicker

/** A run as it happened. */
export class Recorded {
  constructor(run) {
    Object.assign(this, { run, duration: run.duration, marked: true });
  }

  /** Tokens written by `ms` after the first one. */
  count(ms) {
    const step = above(this.run.end, ms + this.run.end[0]);
    return this.run.first[Math.min(step, this.run.steps)];
  }

  /** What is being guessed at `ms`: `[text, source, verdict]` along the kept path and on; null between drafts. */
  guesses(ms, speed) {
    const { run } = this;
    const step = above(run.end, ms + run.end[0]);
    if (step >= run.steps || !run.nodes[step] || run.took(step) / speed < (calm() ? FLASH.calm : FLASH.lively)) return null;
    const into = (ms - run.began(step)) / run.took(step);
    if (into < 0) return null;
    const record = run.record(step);
    const verdict = into >= VERDICT;
    return { key: 2 * step + verdict, words: chain(record).map((node, depth) => this.guess(record, node, depth, verdict)) };
  }

  guess(record, node, depth, verdict) {
    const kept = list(record.path)[depth] === node;
    const name = verdict ? (kept ? "kept" : "gone") : "";
    return [this.run.pieces.plain(record.draft.tokens[node]), String(list(record.draft.sources)[node] ?? "draft"), name];
  }
}

/** The same text with one token a pass. */
export class Plain {
  constructor(run, ms) {
    Object.assign(this, { run, ms, duration: Math.max(0, run.tokens - 1) * ms, marked: false });
  }

  count(ms) {
    return Math.min(this.run.tokens, 1 + Math.floor(ms / this.ms + 1e-9));
  }

  guesses() {
    return null;
  }
}

/** The kept path, and the first guess below each level after it. */
function chain(record) {
  const parents = list(record.draft?.parents);
  const nodes = [];
  for (let at = -1; nodes.length < 24; ) {
    const kept = list(record.path)[nodes.length];
    const next = kept !== undefined ? kept : parents.indexOf(at);
    if (!(next >= 0)) break;
    nodes.push(next);
    at = next;
  }
  return nodes;
}

/** One pane: the last tokens written, the guesses under way, a caret. */
class Pane {
  constructor(place) {
    this.place = place;
    [this.title, this.figures] = [place.querySelector("h3 span"), place.querySelector("small")];
    [this.bar, this.paper, this.score] = [place.querySelector("i"), place.querySelector(".paper"), place.querySelector(".score")];
    this.tail = make("span");
    this.caret = make("span", "caret");
  }

  set(track, title) {
    Object.assign(this, { track, from: 0, to: 0, key: null });
    this.title.textContent = title;
    this.paper.replaceChildren(this.tail, this.caret);
    this.tail.replaceChildren();
  }

  show(ms, speed) {
    const { track } = this;
    const count = track.count(ms);
    const done = ms >= track.duration;
    this.write(count);
    this.guess(done ? null : track.guesses(ms, speed));
    this.caret.hidden = done;
    this.place.classList.toggle("done", done);
    this.score.textContent = done ? t("seconds", { seconds: number(track.duration / 1000, 2) }) : "";
    this.bar.style.transform = `scaleX(${track.run.tokens ? count / track.run.tokens : 0})`;
    const speedNow = Math.min(ms, track.duration) > 0 ? (1000 * (count - 1)) / Math.min(ms, track.duration) : 0;
    this.figures.textContent = t("progress", { tokens: number(count), speed: number(speedNow, speedNow < 10 ? 1 : 0) });
  }

  write(count) {
    if (count === this.to) return;
    if (count < this.to || count - this.to > WINDOW) {
      while (this.paper.firstChild !== this.tail) this.paper.firstChild.remove();
      this.from = this.to = Math.max(0, count - WINDOW);
    }
    const { run, marked } = this.track;
    const nodes = [];
    for (; this.to < count; this.to += 1) {
      const origin = marked ? look(run.name(this.to)) : "";
      nodes.push(make("span", `token ${origin} ${fences(run)[this.to] ? "code" : ""}`, run.texts[this.to]));
    }
    this.tail.before(...nodes);
    if (this.to - this.from > 2 * WINDOW) {
      for (let i = WINDOW; i > 0; i -= 1) this.paper.firstChild.remove();
      this.from += WINDOW;
    }
    this.paper.scrollTop = this.paper.scrollHeight;
  }

  guess(guesses) {
    if ((guesses?.key ?? null) === this.key) return;
    this.key = guesses?.key ?? null;
    const code = fences(this.track.run)[this.to - 1] ? "code" : "";
    this.tail.replaceChildren(...(guesses?.words ?? []).map(([text, source, name]) => make("span", `token ghost ${look(source)} ${name} ${code}`, text)));
    if (guesses) this.paper.scrollTop = this.paper.scrollHeight;
  }
}

/** The clock and both panes. `tick(ms)` is called whenever the time changes. */
export class Race {
  constructor({ left, right, controls, tick }) {
    this.panes = [new Pane(left), new Pane(right)];
    Object.assign(this, { right, controls, tick, ms: 0, speed: 1, playing: false, duration: 0 });
    controls.play.addEventListener("click", () => this.toggle());
    controls.scrub.addEventListener("input", () => this.seek((controls.scrub.valueAsNumber / 1000) * this.duration));
    controls.speed.addEventListener("change", () => (this.speed = Number(controls.speed.value)));
  }

  /** Two tracks (the second may be null) with their titles; `begin`: play at once, unless less motion is wanted. */
  set(tracks, titles, begin) {
    this.stop();
    this.tracks = tracks.filter(Boolean);
    this.right.hidden = this.tracks.length < 2;
    this.duration = Math.max(0, ...this.tracks.map((track) => track.duration));
    this.tracks.forEach((track, i) => this.panes[i].set(track, titles[i]));
    this.seek(begin && !calm() ? 0 : this.duration);
    if (begin && !calm()) this.play();
  }

  toggle() {
    if (this.playing) this.stop();
    else this.play();
  }

  play() {
    if (!this.duration) return;
    if (this.ms >= this.duration) this.ms = 0;
    this.state(true);
    let before = performance.now();
    const frame = (now) => {
      if (!this.playing) return;
      this.seek(this.ms + Math.min(250, Math.max(0, now - before)) * this.speed);
      before = now;
      if (this.ms >= this.duration) this.stop();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  stop() {
    this.state(false);
  }

  state(playing) {
    this.playing = playing;
    this.controls.changed(playing);
  }

  seek(ms) {
    this.ms = Math.max(0, Math.min(this.duration, ms));
    this.tracks.forEach((_, i) => this.panes[i].show(this.ms, this.speed));
    const { scrub, clock } = this.controls;
    scrub.value = this.duration ? (1000 * this.ms) / this.duration : 0;
    scrub.setAttribute("aria-valuetext", t("seconds", { seconds: number(this.ms / 1000, 1) }));
    clock.textContent = `${number(this.ms / 1000, 1)} / ${t("seconds", { seconds: number(this.duration / 1000, 1) })}`;
    this.tick(this.ms);
  }
}
