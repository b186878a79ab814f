// Addresses of the page and of the API, relative to this module: a proxy may serve the whole server below a prefix.

/** Address of the page's first view. */
export const UI = new URL("../../", import.meta.url);
/** Address of the server. */
export const ROOT = new URL("../", UI);
/** Base URL that clients of OpenAI's API need. */
export const API_URL = new URL("v1", ROOT).href;
/** Base URL that clients of Anthropic's API need. */
export const ROOT_URL = ROOT.href.replace(/\/$/, "");

/** The server knows these paths, too: it answers them with the document. */
const TURN_ID = /^[A-Za-z0-9_.-]{1,200}$/;

/** @typedef {{name: "start"} | {name: "turns"} | {name: "turn", id: string}} Route */

/** Returns the view that a path names. @type {(pathname: string) => Route} */
export function readRoute(pathname) {
  const rest = pathname.startsWith(UI.pathname) ? pathname.slice(UI.pathname.length) : "";
  if (rest === "turns") return { name: "turns" };
  const id = rest.startsWith("turns/") ? rest.slice("turns/".length) : "";
  return TURN_ID.test(id) ? { name: "turn", id } : { name: "start" };
}

/** Returns the address of a turn's view, or null for an id that is none. @type {(id: unknown) => string | null} */
export function turnAddress(id) {
  return typeof id === "string" && TURN_ID.test(id) ? new URL(`turns/${encodeURIComponent(id)}`, UI).href : null;
}

export const START_ADDRESS = UI.href;
export const TURNS_ADDRESS = new URL("turns", UI).href;
