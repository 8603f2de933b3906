// Bundles the page into the folder given as argument: page.js, layout.js (which runs in
// a worker), page.css, index.html, icon.svg, views that are loaded only where they are shown
// (runs.js, reports.js with their styles; base.css is for a page of one view alone), and the
// licences of what was bundled. Classic scripts, because a file:// page may load no module.
import { build } from "esbuild";
import { copyFile, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";

/** The folders of the packages whose code went into the bundle. */
function bundledPackages(metafile) {
  const folder = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//;
  const folders = Object.keys(metafile.inputs).map((input) => folder.exec(input)?.[1]);
  return [...new Set(folders.filter(Boolean))].sort();
}

/** The name of a package, its copyright, and the licence without them. */
async function licenceOf(folder) {
  const { name, version, license } = JSON.parse(await readFile(path.join(folder, "package.json"), "utf8"));
  const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
  const lines = file ? (await readFile(path.join(folder, file), "utf8")).trim().split(/\r?\n/) : [];
  const isCopyright = (line) => /^(copyright|the mit license)/i.test(line);
  const copyright = lines.filter((line) => /^copyright/i.test(line));
  const terms = lines.filter((line) => !isCopyright(line)).join("\n").trim();
  return { of: [`${name} ${version} (${license})`, ...copyright].join("\n"), terms };
}

/** The licences of some packages; terms that several have are written once. */
function licenceText(licences) {
  const holders = new Map();
  for (const { of, terms } of licences) {
    const words = terms.replace(/\s+/g, " ");
    const known = holders.get(words) ?? { of: [], terms };
    holders.set(words, { ...known, of: [...known.of, of] });
  }
  return [...holders.values()].map(({ of, terms }) => `${of.join("\n\n")}\n\n${terms}\n`).join(`\n${"-".repeat(80)}\n\n`);
}

const out = path.resolve(process.argv[2]);
process.chdir(fileURLToPath(new URL(".", import.meta.url)));
await mkdir(out, { recursive: true });
const { metafile } = await build({
  entryPoints: [
    { in: "src/main.tsx", out: "page" },
    { in: "src/page.css", out: "page" },
    { in: "src/graph/layout.worker.ts", out: "layout" },
    { in: "src/frame/theme.css", out: "base" },
    { in: "src/reports/reports.tsx", out: "reports" },
    { in: "src/runs/table.tsx", out: "runs" },
  ],
  outdir: out,
  bundle: true,
  minify: true,
  metafile: true,
  format: "iife",
  target: "es2022",
  legalComments: "none",
  logLevel: "warning",
});
await copyFile("src/index.html", path.join(out, "index.html"));
await copyFile("src/icon.svg", path.join(out, "icon.svg"));
const licences = await Promise.all(bundledPackages(metafile).map(licenceOf));
await writeFile(path.join(out, "THIRD_PARTY.txt"), licenceText(licences));
