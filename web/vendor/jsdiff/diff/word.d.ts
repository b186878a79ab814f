export * from "diff/lib/diff/word.js";
