// Readers of streamed bodies: server-sent events and lines of JSON, in pieces of any size.

/** Longest line that is kept, in UTF-16 units: a server that sends no line feed must not fill the memory. */
export const MAX_LINE_LENGTH = 64 * 1024 * 1024;

/**
 * Yields the lines of a body without their ends. The last one needs no end.
 * @param {AsyncIterable<Uint8Array>} body
 * @returns {AsyncGenerator<string>}
 */
export async function* readLines(body) {
  const decoder = new TextDecoder();
  /** @type {string[]} */
  let waiting = [];
  let length = 0;
  for await (const bytes of body) {
    const text = decoder.decode(bytes, { stream: true });
    let start = 0;
    for (;;) {
      const end = text.indexOf("\n", start);
      if (end < 0) break;
      const line = waiting.length > 0 ? waiting.join("") + text.slice(start, end) : text.slice(start, end);
      waiting = [];
      length = 0;
      yield line.endsWith("\r") ? line.slice(0, -1) : line;
      start = end + 1;
    }
    if (start < text.length) waiting.push(text.slice(start));
    length += text.length - start;
    if (length > MAX_LINE_LENGTH) throw new RangeError(`a line is longer than ${MAX_LINE_LENGTH} characters`);
  }
  waiting.push(decoder.decode());
  const line = waiting.join("");
  if (line !== "") yield line;
}

/**
 * Yields the objects of a body with one JSON value a line. Empty lines are skipped.
 * @param {AsyncIterable<Uint8Array>} body
 * @returns {AsyncGenerator<any>}
 */
export async function* readJsonLines(body) {
  for await (const line of readLines(body)) {
    if (line.trim() !== "") yield JSON.parse(line);
  }
}

/**
 * Yields the data of server-sent events, without the end mark `[DONE]`. An event without its empty line is dropped, as
 * the standard says.
 * @param {AsyncIterable<Uint8Array>} body
 * @returns {AsyncGenerator<any>}
 */
export async function* readEvents(body) {
  /** @type {string[]} */
  let data = [];
  for await (const line of readLines(body)) {
    if (line !== "") {
      if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      continue;
    }
    const text = data.join("\n");
    data = [];
    if (text !== "" && text !== "[DONE]") yield JSON.parse(text);
  }
}
