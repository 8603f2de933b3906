/** A style sheet that is bundled with the script that imports it. */
declare module "*.css";
