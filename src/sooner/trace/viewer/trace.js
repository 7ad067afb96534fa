// The trace format, schema 1, as the page needs it: runs of steps and tokens in flat lists; a step's whole record is
// kept as its line and parsed when somebody looks at it. Knows records; does not know files or elements.

import { above } from "./dom.js";
import { Pieces } from "./pieces.js";

export const SCHEMA = 1;
export const TARGET = "target";

/** Why a file is not shown. `kind` names the message, `values` fill it in. */
export class TraceError extends Error {
  constructor(kind, values = {}) {
    super(kind);
    Object.assign(this, { kind, values });
  }
}

/** One text: flat lists by step (`first`, `start`, `end`, `nodes`, ...) and by token (`ids`, `texts`, `sources`). */
export class Run {
  constructor(header, choice, pieces) {
    Object.assign(this, { header, choice, pieces, footer: null, figures: null, finish: null, names: [TARGET] });
    Object.assign(this, { ids: [], texts: [], sources: [], first: [0], lines: [] });
    Object.assign(this, { end: [], draft: [], score: [], verify: [], overhead: [], nodes: [], kept: [], depth: [], rows: [] });
    this.decoder = pieces.decoder();
    this.released = 0;
    this.parsed = new Map();
  }

  get steps() {
    return this.lines.length;
  }

  get tokens() {
    return this.ids.length;
  }

  /** The step that emitted a token. */
  stepOf(token) {
    return Math.max(0, Math.min(this.steps, above(this.first, token)) - 1);
  }

  /** How long a step took, in milliseconds. */
  took(step) {
    return this.draft[step] + this.score[step] + this.verify[step] + this.overhead[step];
  }

  /** When a step ended, in milliseconds after the first token. */
  ended(step) {
    return this.end[step] - this.end[0];
  }

  began(step) {
    return this.ended(step) - this.took(step);
  }

  /** From the first token to the last. */
  get duration() {
    return this.steps ? this.ended(this.steps - 1) : 0;
  }

  /** The whole record of a step. */
  record(step) {
    if (!this.parsed.has(step)) {
      if (this.parsed.size > 200) this.parsed.clear();
      this.parsed.set(step, JSON.parse(this.lines[step]));
    }
    return this.parsed.get(step);
  }

  name(token) {
    return this.names[this.sources[token]];
  }

  add(record, line) {
    const draft = tree(record.draft);
    const ids = list(record.tokens);
    const from = this.tokens;
    ids.forEach((id, i) => {
      this.ids.push(id);
      this.texts.push(this.decoder.push(id));
      this.sources.push(this.number(record.sources?.[i]));
    });
    this.release(String(record.text ?? ""), from, Boolean(record.finish));
    this.first.push(this.tokens);
    this.lines.push(line);
    this.draft.push(finite(record.draft_ms));
    this.score.push(finite(record.score_ms));
    this.verify.push(finite(record.verify_ms));
    this.overhead.push(finite(record.overhead_ms));
    const before = this.end.at(-1) ?? 0;
    this.end.push(Math.max(before, finite(record.at_ms) || before + this.took(this.steps - 1)));
    this.nodes.push(draft.length);
    this.depth.push(draft.depth);
    this.kept.push(list(record.path).length);
    this.rows.push(finite(record.rows));
    this.finish = record.finish ?? this.finish;
  }

  /** `text` became certain. Without pieces it is all that is known of the tokens; a stop string is cut off the end. */
  release(text, from, finished) {
    this.released += text.length;
    if (this.pieces.known) {
      if (!finished) return;
      if (this.tokens) this.texts[this.tokens - 1] += this.decoder.flush();
      let over = this.texts.reduce((sum, part) => sum + part.length, 0) - this.released;
      for (let i = this.tokens - 1; i >= 0 && over > 0; i -= 1) {
        const cut = Math.min(over, this.texts[i].length);
        this.texts[i] = this.texts[i].slice(0, this.texts[i].length - cut);
        over -= cut;
      }
    } else if (from < this.tokens) {
      this.texts[from] = text;
    }
  }

  number(name) {
    const text = String(name ?? TARGET);
    const at = this.names.indexOf(text);
    return at >= 0 ? at : this.names.push(text) - 1;
  }
}

/** Takes lines in; `finish()` gives the runs. `full`: the limit is reached, the rest need not be read. */
export class Builder {
  constructor(limits) {
    Object.assign(this, { limits, runs: [], footers: [], damaged: 0, characters: 0, steps: 0, full: false, open: null });
  }

  get started() {
    return this.open !== null;
  }

  /** False as soon as nothing more is taken. */
  add(line) {
    if (!line.trim()) return !this.full;
    let record;
    try {
      record = JSON.parse(line);
    } catch {
      if (!this.started) throw new TraceError("foreign");
      this.damaged += 1;
      return true;
    }
    this.take(record, line);
    return !this.full;
  }

  take(record, line) {
    if (record === null || typeof record !== "object") {
      if (!this.started) throw new TraceError("foreign");
      this.damaged += 1;
    } else if (record.type === "header") this.begin(record);
    else if (!this.started) throw new TraceError("foreign");
    else if (record.type === "tokens") this.open.pieces.add(record.pieces);
    else if (record.type === "step") this.step(record, line);
    else if (record.type === "footer") this.open.footer = record;
  }

  begin(header) {
    if (!Number.isInteger(header.schema)) throw new TraceError("foreign");
    if (header.schema > SCHEMA) throw new TraceError("newer", { schema: header.schema, known: SCHEMA });
    this.open = { header, pieces: new Pieces(), footer: null, runs: new Map() };
    this.runs.push(this.open);
  }

  step(record, line) {
    if (this.steps >= this.limits.steps || this.characters > this.limits.characters) {
      this.full = true;
      return;
    }
    const choice = finite(record.choice);
    const { runs, header, pieces } = this.open;
    if (!runs.has(choice)) runs.set(choice, new Run(header, choice, pieces));
    runs.get(choice).add(record, line);
    this.steps += 1;
    this.characters += line.length;
  }

  /** The last line, which has no end: complete or cut off. */
  last(line) {
    const before = this.damaged;
    if (line.trim()) this.add(line);
    this.damaged = before;
  }

  /** The end of a file whose middle was left out: its footer. */
  tail(text) {
    const line = text.trimEnd().split("\n").at(-1);
    if (line.startsWith('{"type":"footer"')) this.last(line);
  }

  finish() {
    if (!this.started) throw new TraceError("foreign");
    const runs = [];
    for (const { header, footer, runs: found, pieces } of this.runs) {
      if (!found.size) found.set(0, new Run(header, 0, pieces));
      for (const run of found.values()) {
        run.footer = footer;
        run.figures = list(footer?.choices).find((choice) => choice?.choice === run.choice) ?? null;
        runs.push(run);
      }
    }
    const { damaged, full, steps } = this;
    return { runs, damaged, full, steps, cut: !full && this.runs.some(({ footer }) => !footer) };
  }
}

/** A draft's parents, checked: how many nodes it has, and how deep it is. */
function tree(draft) {
  const parents = list(draft?.parents);
  const depths = [];
  let depth = 0;
  parents.forEach((parent, i) => {
    depths.push(parent >= 0 && parent < i ? depths[parent] + 1 : 1);
    depth = Math.max(depth, depths[i]);
  });
  return { length: parents.length, depth };
}

export const list = (value) => (Array.isArray(value) ? value : []);
export const finite = (value) => (Number.isFinite(value) ? value : 0);
