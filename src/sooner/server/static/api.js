// The server's API as the page uses it: models, health, and a streamed chat. Knows HTTP and SSE; does not know the page.

/** Why no answer came. `kind` is a key of the strings `e_...`; `detail` the server's own words. */
export class Failure extends Error {
  constructor(kind, detail = "", values = {}) {
    super(kind);
    this.kind = kind;
    this.detail = detail;
    this.values = values;
  }
}

/** The events of an SSE body, `{event, data}` each, however its bytes are cut. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let found = { event: "message", data: [] };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += done ? "\n" : value;
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (found.data.length) yield { event: found.event, data: found.data.join("\n") };
          found = { event: "message", data: [] };
        } else if (line.startsWith("data:")) found.data.push(line.slice(5).replace(/^ /, ""));
        else if (line.startsWith("event:")) found.event = line.slice(6).trim();
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The chunks of a streamed chat completion. Raises `Failure`, or the abort of `signal`. */
export async function* chat(request, key, signal) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true }, sooner_pieces: true });
  const headers = { "content-type": "application/json", ...authorised(key) };
  const reply = await reach("v1/chat/completions", { method: "POST", headers, body, signal });
  if (!reply.ok) throw await refusal(reply, key);
  try {
    for await (const { event, data } of events(reply.body)) {
      if (data === "[DONE]") return;
      const chunk = parsed(data);
      if (event === "error" || chunk.error) throw new Failure(kindOf(chunk.error?.code, "failed"), chunk.error?.message);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Failure || error.name === "AbortError") throw error;
    throw new Failure("broken");
  }
  throw new Failure("broken");
}

/** The names of the models served. Raises `Failure`. */
export async function models(key) {
  const reply = await reach("v1/models", { headers: authorised(key) });
  if (!reply.ok) throw await refusal(reply, key);
  return (await reply.json()).data.map((model) => model.id);
}

/** Whether the server is ready to answer; false while it loads or cannot be reached. */
export async function ready() {
  try {
    return (await fetch("health", { cache: "no-store" })).ok;
  } catch {
    return false;
  }
}

function authorised(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("network");
  }
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Failure("failed", data.slice(0, 200));
  }
}

/** What to call a failure with this code of the server's; `otherwise` where the code says nothing. */
function kindOf(code, otherwise) {
  const known = {
    context_length_exceeded: "long",
    deadline_exceeded: "slow",
    model_loading: "loading",
    shutting_down: "closing",
  };
  return known[code] ?? otherwise;
}

async function refusal(reply, key) {
  let error = {};
  try {
    error = (await reply.json()).error ?? {};
  } catch {
    // not the error object of this API, so the status has to do
  }
  const detail = error.message ?? "";
  if (reply.status === 401) return new Failure(key ? "keyWrong" : "key");
  if (reply.status === 429) return new Failure("busy", "", { seconds: Number(reply.headers.get("retry-after")) || 5 });
  if (reply.status === 404 && !detail) return new Failure("missing");
  const otherwise = reply.status === 503 ? "loading" : reply.status < 500 ? "refused" : "failed";
  return new Failure(kindOf(error.code, otherwise), detail || `HTTP ${reply.status}`);
}
