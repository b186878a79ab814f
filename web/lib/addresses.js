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

const VIEW_NAMES = new Set(["turns", "live", "compare", "play"]);

/** @typedef {{name: string, id: string}} Route `id`: that of a turn, else empty. */

/** Returns the view that a path names. @type {(pathname: string) => Route} */
export function readRoute(pathname) {
  const rest = pathname.startsWith(UI.pathname) ? pathname.slice(UI.pathname.length) : "";
  const id = rest.startsWith("turns/") ? rest.slice("turns/".length) : "";
  if (TURN_ID.test(id)) return { name: "turn", id };
  return { name: VIEW_NAMES.has(rest) ? rest : "start", id: "" };
}

/** Returns the address of a turn's view, or null for an id that is none. @type {(id: unknown) => string | null} */
export function turnAddress(id) {
  return typeof id === "string" && TURN_ID.test(id) ? new URL(`turns/${encodeURIComponent(id)}`, UI).href : null;
}

export const START_ADDRESS = UI.href;

/** Returns the address of a view with fields of its query. @type {(name: string, fields?: Record<string, string>) => string} */
export function viewAddress(name, fields = {}) {
  const query = new URLSearchParams(fields).toString();
  return new URL(name + (query === "" ? "" : `?${query}`), UI).href;
}
