/** A sentence in which names and code stand between backquotes, as findings write them. */
export function Prose({ text }: { text: string }) {
  const parts = text.split(/`([^`]+)`/);
  return <>{parts.map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part))}</>;
}
