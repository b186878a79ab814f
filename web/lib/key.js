// The key of this tab. It comes in the fragment of the address, which no server and no log sees, or from a field; it is
// kept for this tab only and leaves the address at once.

const STORAGE_NAME = "antiphon.key";
const FRAGMENT_NAME = "key";

/**
 * @typedef {object} Place What the key is read from. In the browser: `location`, `history` and `sessionStorage`.
 * @property {{hash: string, pathname: string, search: string}} location
 * @property {{replaceState: (data: unknown, title: string, url: string) => void}} history
 * @property {{getItem: (name: string) => string | null, setItem: (name: string, value: string) => void,
 *   removeItem: (name: string) => void}} storage
 */

/**
 * Moves a key of the address to the storage of the tab. Returns whether there was one.
 * @param {Place} place
 */
export function takeKeyFromAddress(place) {
  const fields = new URLSearchParams(place.location.hash.slice(1));
  const key = fields.get(FRAGMENT_NAME);
  if (key === null) return false;
  fields.delete(FRAGMENT_NAME);
  const rest = fields.toString();
  place.history.replaceState(
    null,
    "",
    place.location.pathname + place.location.search + (rest === "" ? "" : `#${rest}`),
  );
  setKey(place, key);
  return true;
}

/** @param {Pick<Place, "storage">} place @param {string} key */
export function setKey(place, key) {
  const trimmed = key.trim();
  if (trimmed === "") place.storage.removeItem(STORAGE_NAME);
  else place.storage.setItem(STORAGE_NAME, trimmed);
}

/** @param {Pick<Place, "storage">} place */
export function getKey(place) {
  return place.storage.getItem(STORAGE_NAME) ?? "";
}

/**
 * Returns the headers that send the key. A key with characters that no header can have is not sent.
 * @param {string} key
 * @returns {Record<string, string>}
 */
export function keyHeaders(key) {
  return /^[\x21-\x7e]+$/.test(key) ? { authorization: `Bearer ${key}` } : {};
}
