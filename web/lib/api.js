// Requests to the server. The key goes into a header only: never into an address, where logs would keep it.
import { ROOT } from "./addresses.js";
import { keyHeaders } from "./key.js";
import { currentKey, keyRefused } from "./session.js";
import { readEvents, readJsonLines } from "./streams.js";

/** An error that the server answered, or a connection that failed (then the status is 0). */
export class ApiFailure extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * @param {string} path Path below the server's address, without a slash in front.
 * @param {AbortSignal} signal
 * @param {{asksForKey: boolean}} [options] Whether the page asks for a key if the server refuses this one.
 */
export async function fetchJson(path, signal, { asksForKey } = { asksForKey: true }) {
  return await (await send(path, { signal }, asksForKey)).json();
}

/**
 * Returns the text of a body and its media type, without parameters.
 * @param {string} path
 * @param {AbortSignal} signal
 */
export async function fetchText(path, signal) {
  const reply = await send(path, { signal });
  const type = (reply.headers.get("content-type") ?? "").replace(/;.*/, "").trim();
  return { text: await reply.text(), type };
}

/**
 * Yields the values of a body of JSON lines.
 * @param {string} path
 * @param {AbortSignal} signal
 */
export async function* fetchLines(path, signal) {
  const reply = await send(path, { signal });
  if (reply.body !== null) yield* readJsonLines(iterate(reply.body));
}

/** Returns the path of a part of a turn. @type {(id: string, part?: string) => string} */
export function turnPath(id, part = "") {
  return `v1/inspect/turns/${encodeURIComponent(id)}${part}`;
}

/** Cancels a turn in the background. @param {string} id */
export async function cancelTurn(id) {
  await send(`v1/responses/${encodeURIComponent(id)}/cancel`, postInit({}));
}

/**
 * Posts a body and yields the events of the streamed reply.
 * @type {(path: string, body: unknown, signal: AbortSignal) => AsyncGenerator<any>}
 */
export function postForEvents(path, body, signal) {
  return fetchEvents(path, signal, postInit(body));
}

/** @type {(body: unknown) => RequestInit} */
function postInit(body) {
  return { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
}

/**
 * Yields the events of a stream.
 * @param {string} path
 * @param {AbortSignal} signal
 * @param {RequestInit} [init]
 */
export async function* fetchEvents(path, signal, init) {
  const reply = await send(path, { ...init, signal });
  if (reply.body !== null) yield* readEvents(iterate(reply.body));
}

/** @param {string} path @param {RequestInit} init @param {boolean} asksForKey @returns {Promise<Response>} */
async function send(path, init, asksForKey = true) {
  const headers = { ...init.headers, ...keyHeaders(currentKey()) };
  /** @type {Response} */
  let reply;
  try {
    const options = /** @type {const} */ ({ cache: "no-store", credentials: "omit", redirect: "error" });
    reply = await fetch(new URL(path, ROOT), { ...init, ...options, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiFailure(0, "The server does not answer.");
  }
  if (reply.ok) return reply;
  if (reply.status === 401 && asksForKey) keyRefused.value = true;
  throw new ApiFailure(reply.status, await readMessage(reply));
}

/** @type {(reply: Response) => Promise<string>} */
async function readMessage(reply) {
  try {
    const message = (await reply.json())?.error?.message;
    return typeof message === "string" ? message : `The server answered with status ${reply.status}.`;
  } catch {
    return `The server answered with status ${reply.status}.`;
  }
}

/** Yields the chunks of a stream: not every browser's streams are iterable. @param {ReadableStream<Uint8Array>} stream */
async function* iterate(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** Tells whether an error only says that a request was given up. @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}
