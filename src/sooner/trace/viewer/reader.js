// Reads a trace of any size piece by piece, without freezing the page or filling the memory.
// Knows bytes and lines; what a line means is the builder's business.

import { Builder, TraceError } from "./trace.js";

/** What is kept at most: beyond it the rest of the file is left unread, and the page says so. */
export const LIMITS = { characters: 96e6, steps: 200_000, line: 32e6 };

const TAIL = 1 << 18;
const SLICE_MS = 12;

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
  const reader = stream(blob, packed, (bytes) => (done += bytes)).getReader();
  try {
    for (;;) {
      const part = await next(reader, builder);
      if (!part) break;
      for (const line of lines.push(part)) {
        if (!builder.add(line)) break;
        if (performance.now() - paused < SLICE_MS) continue;
        progress(done, blob.size);
        await breathe();
        paused = performance.now();
        signal?.throwIfAborted();
      }
      if (builder.full) break;
      signal?.throwIfAborted();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!builder.full) builder.last(lines.rest);
  else if (!packed) builder.tail(await blob.slice(Math.max(0, blob.size - TAIL)).text());
  return builder.finish();
}

/** The next piece of text; null at the end. A compressed file that was cut off ends where it was cut. */
async function next(reader, builder) {
  try {
    const { done, value } = await reader.read();
    return done ? null : value;
  } catch (error) {
    if (!builder.started) throw new TraceError("unreadable", { reason: String(error?.message ?? error) });
    return null;
  }
}

function stream(blob, packed, count) {
  const counter = new TransformStream({
    transform(bytes, out) {
      count(bytes.length);
      out.enqueue(bytes);
    },
  });
  const bytes = blob.stream().pipeThrough(counter);
  return (packed ? bytes.pipeThrough(new DecompressionStream("gzip")) : bytes).pipeThrough(new TextDecoderStream());
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

/** Cuts pieces of text into lines; `rest` is what has no end yet. */
class Lines {
  constructor(most) {
    this.most = most;
    this.rest = "";
  }

  push(part) {
    const lines = (this.rest + part).split("\n");
    this.rest = lines.pop();
    if (this.rest.length > this.most) throw new TraceError("foreign");
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
