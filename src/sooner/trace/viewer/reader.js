// Reads a trace of any size piece by piece, without freezing the page or filling the memory.
// Knows bytes and lines; what a line means is the builder's business.

import { Builder, TraceError } from "./trace.js";

/** What is kept at most: beyond it the rest of the file is left unread, and the page says so. */
export const LIMITS = { characters: 96e6, steps: 200_000, line: 32e6 };

const SLICE = 1 << 22;
const TAIL = 1 << 18;
const SLICE_MS = 16;

/**
 * The runs in a file. `progress(read, size)` is called between pieces; aborting `signal` rejects with its reason.
 * Raises `TraceError` for what is no trace; whatever the page shows by then stays as it is.
 */
export async function read(blob, { progress = () => {}, signal, limits = LIMITS } = {}) {
  if (!blob.size) throw new TraceError("empty");
  const packed = await isGzip(blob);
  const builder = new Builder(limits);
  const lines = new Lines(limits.line);
  let [done, paused] = [0, performance.now()];
  const texts = decoded(blob, packed, (bytes) => (done += bytes));
  for (let part = await next(texts, builder); part !== null && !builder.full; part = await next(texts, builder)) {
    for (const line of lines.push(part)) {
      if (!builder.add(line)) break;
      if (performance.now() - paused < SLICE_MS) continue;
      progress(done, blob.size);
      await breathe();
      paused = performance.now();
      signal?.throwIfAborted();
    }
    signal?.throwIfAborted();
  }
  if (!builder.full) builder.last(lines.rest);
  else if (!packed) builder.tail(await blob.slice(Math.max(0, blob.size - TAIL)).text());
  return builder.finish();
}

/** The next piece of text; null at the end. A compressed file that was cut off ends where it was cut. */
async function next(texts, builder) {
  try {
    const { done, value } = await texts.next();
    return done ? null : value;
  } catch (error) {
    if (!builder.started) throw new TraceError("unreadable", { reason: String(error?.message ?? error) });
    return null;
  }
}

/** The text of a file, a slice at a time. */
async function* decoded(blob, packed, count) {
  const utf8 = new TextDecoder();
  for await (const bytes of packed ? unpacked(blob, count) : slices(blob, count)) yield utf8.decode(bytes, { stream: true });
}

async function* slices(blob, count) {
  for (let at = 0; at < blob.size; at += SLICE) {
    const bytes = new Uint8Array(await blob.slice(at, at + SLICE).arrayBuffer());
    count(bytes.length);
    yield bytes;
  }
}

async function* unpacked(blob, count) {
  const source = slices(blob, count);
  const stream = new ReadableStream({
    async pull(out) {
      const { done, value } = await source.next();
      if (done) out.close();
      else out.enqueue(value);
    },
  });
  const reader = stream.pipeThrough(new DecompressionStream("gzip")).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

async function isGzip(blob) {
  try {
    const [one, two] = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
    return one === 0x1f && two === 0x8b;
  } catch (error) {
    throw new TraceError("unreadable", { reason: String(error?.message ?? error) });
  }
}

/** Let the browser paint and answer before going on. */
const breathe = () => new Promise((resolve) => setTimeout(resolve));

/** Cuts pieces of text into lines; `rest` is what has no end yet. A file that begins otherwise than JSON is foreign. */
class Lines {
  constructor(most) {
    Object.assign(this, { most, parts: [], size: 0, begun: false });
  }

  get rest() {
    return this.parts.join("");
  }

  push(part) {
    const start = this.begun ? "{" : part.trimStart()[0];
    if (start === undefined) return [];
    if (start !== "{") throw new TraceError("foreign");
    this.begun = true;
    this.parts.push(part);
    this.size += part.length;
    if (this.size > this.most) throw new TraceError("foreign");
    if (!part.includes("\n")) return [];
    const lines = this.rest.split("\n");
    this.parts = [lines.pop()];
    this.size = this.parts[0].length;
    return lines;
  }
}

/** The trace inside the page as a blob with a name; null if there is none. */
export function embedded(node) {
  if (!node) return null;
  const text = atob(node.textContent.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return new File([bytes], node.dataset.name);
}
