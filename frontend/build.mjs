// Bundles the page into the folder given as argument: page.js, layout.js (which runs in
// a worker), page.css, index.html, icon.svg and the licences of what was bundled. Classic scripts,
// because a file:// page may load no module.
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

async function licenceOf(folder) {
  const { name, version, license } = JSON.parse(await readFile(path.join(folder, "package.json"), "utf8"));
  const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
  const text = file ? await readFile(path.join(folder, file), "utf8") : "";
  return `${name} ${version} (${license})\n\n${text.trim()}\n`;
}

const out = path.resolve(process.argv[2]);
process.chdir(fileURLToPath(new URL(".", import.meta.url)));
await mkdir(out, { recursive: true });
const { metafile } = await build({
  entryPoints: [
    { in: "src/main.tsx", out: "page" },
    { in: "src/page.css", out: "page" },
    { in: "src/graph/layout.worker.ts", out: "layout" },
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
await writeFile(path.join(out, "THIRD_PARTY.txt"), licences.join(`\n${"-".repeat(80)}\n\n`));
