// The key of this tab, shared by all views: a view that gets a 401 asks for it, and loads again once there is one.
import { signal } from "../vendor/signals-core.js";
import { getKey, setKey, takeKeyFromAddress } from "./key.js";

const place = { location, history, storage: sessionStorage };

/** Counts changes of the key. A view loads its data again when it changes. */
export const keyVersion = signal(0);
/** Whether the server has refused the key of this tab, or that there is none. */
export const keyRefused = signal(false);

/** Takes a key from the address of this tab, now and whenever the fragment changes. */
export function watchAddress() {
  takeKeyFromAddress(place);
  addEventListener("hashchange", () => {
    if (takeKeyFromAddress(place)) acceptKey();
  });
}

/** @param {string} key */
export function changeKey(key) {
  setKey(place, key);
  acceptKey();
}

export function currentKey() {
  return getKey(place);
}

function acceptKey() {
  keyRefused.value = false;
  keyVersion.value += 1;
}
