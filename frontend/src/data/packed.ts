/** The data inside a file: JSON, compressed, as text. */

export async function unpack<T>(text: string): Promise<T> {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(plain).json()) as T;
}
