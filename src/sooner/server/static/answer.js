// One answer as data: its text, where each part came from, and its figures. Knows chunks; draws nothing.

export const TARGET = "target";

/** Grows chunk by chunk. `runs` are `[start, end, source]` of drafted text, in order; `steps` the tokens of each pass. */
export class Answer {
  constructor(request, plain = false) {
    this.request = request;
    this.plain = plain;
    this.text = "";
    this.runs = [];
    this.steps = [];
    this.kept = {};
    this.reach = 0;
    this.started = performance.now();
    this.firstAt = null;
    this.lastAt = null;
    this.finish = null;
    this.usage = null;
    this.timings = null;
    this.speculation = null;
    this.failure = null;
    this.verdict = null;
  }

  /** Take a chunk in; true if it belonged to a pass of the model. */
  take(chunk, now) {
    const choice = chunk.choices?.[0];
    this.usage = chunk.usage ?? this.usage;
    this.timings = chunk.timings ?? this.timings;
    this.speculation = chunk.metrics?.speculative_decoding ?? this.speculation;
    if (!choice) return false;
    this.text += choice.delta?.content ?? "";
    this.finish = choice.finish_reason ?? this.finish;
    const pieces = choice.sooner?.pieces ?? [];
    if (pieces.length) this.step(pieces, now);
    return pieces.length > 0;
  }

  step(pieces, now) {
    this.firstAt ??= now;
    this.lastAt = now;
    let drafted = 0;
    let last = null;
    for (const [text, source] of pieces) {
      const start = this.reach;
      this.reach += text.length;
      if (source === TARGET) last = null;
      else {
        drafted += 1;
        this.kept[source] = (this.kept[source] ?? 0) + 1;
        if (last && last[2] === source) last[1] = this.reach;
        else this.runs.push((last = [start, this.reach, source]));
      }
    }
    this.steps.push([pieces.length, drafted]);
  }

  get tokens() {
    return this.steps.reduce((sum, [tokens]) => sum + tokens, 0) || this.usage?.completion_tokens || 0;
  }

  /** Tokens per pass after the first one, the model's own included; null while there is none. */
  get perPass() {
    const passes = this.steps.length - 1;
    return passes > 0 ? (this.tokens - this.steps[0][0]) / passes : null;
  }

  /** The share of the model's passes that plain decoding would have needed on top; null while unknown. */
  get saved() {
    return this.steps.length > 1 ? 1 - this.steps.length / this.tokens : null;
  }

  /** Decoding time after the first token, in milliseconds: the server's figure if it sent one. */
  get decodingMs() {
    return this.timings?.predicted_ms ?? (this.lastAt ?? 0) - (this.firstAt ?? 0);
  }

  /** Tokens per second; null while there is too little to tell. */
  get speed() {
    const tokens = this.tokens - (this.steps[0]?.[0] ?? 0);
    return this.decodingMs > 0 && tokens > 0 ? (1000 * tokens) / this.decodingMs : null;
  }

  get seconds() {
    return ((this.lastAt ?? this.started) - this.started) / 1000;
  }

  /** What is kept over a reload. */
  toJSON() {
    const { request, plain, text, runs, steps, kept, started, firstAt, lastAt, finish, usage, timings, speculation, verdict } = this;
    return { request, plain, text, runs, steps, kept, started, firstAt, lastAt, finish, usage, timings, speculation, verdict };
  }

  static from(record) {
    return Object.assign(new Answer(record.request, record.plain), record);
  }
}

/** The first offset at which two texts differ; null if they are equal. */
export function difference(one, other) {
  if (one === other) return null;
  let i = 0;
  while (i < one.length && one[i] === other[i]) i += 1;
  return i;
}
