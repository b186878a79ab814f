export * from "diff/lib/diff/array.js";
