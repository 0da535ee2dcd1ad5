// Requests to the server: JSON, and a stream of server-sent events. Every failure is a Problem that says what to do.

export class Problem extends Error {
  constructor(kind, message, retryAfter = null) {
    super(message);
    this.kind = kind; // "down", "full", "refused", "key", "broken" or "server"
    this.retryAfter = retryAfter;
  }
}

async function send(path, key, options = {}) {
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("down", "The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response) {
  let reason = "";
  try {
    const body = await response.json();
    reason = body.error?.message ?? body.detail ?? "";
    if (typeof reason !== "string") reason = JSON.stringify(reason);
  } catch {
    // no JSON: the status has to do
  }
  const { status } = response;
  if (status === 401 || status === 403) return new Problem("key", `The server asks for an API key. ${reason}`.trim());
  if (status === 429) {
    const seconds = Number(response.headers.get("Retry-After")) || null;
    const when = seconds ? `Try again in ${seconds} s.` : "Try again soon.";
    return new Problem("full", `The server is full: all slots and the queue are taken (429). ${when}`, seconds);
  }
  if (status >= 400 && status < 500) return new Problem("refused", `The server refused this request (${status}): ${reason || response.statusText}`);
  return new Problem("server", `The server failed (${status}): ${reason || response.statusText}`);
}

export async function getJson(path, key) {
  const response = await send(path, key);
  return response.json();
}

// The chunks of a completion, parsed, as they come.
export async function* completion(path, body, key, signal) {
  const response = await send(path, key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    yield* chunksOf(reader);
  } finally {
    reader.cancel().catch(() => {}); // closes the connection, where the answer is not read to its end
  }
}

async function* chunksOf(reader) {
  let waiting = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("broken", "The connection was lost before the answer was complete.");
    }
    if (part.done) throw new Problem("broken", "The server ended the answer before it was complete.");
    const lines = (waiting + part.value).split(/\r?\n/);
    waiting = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield parsed(data);
    }
  }
}

function parsed(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new Problem("broken", "The server sent a line that is not JSON.");
  }
  if (chunk.error) throw new Problem("server", `The server failed while it answered: ${chunk.error.message ?? chunk.error}`);
  return chunk;
}
