import { jump } from "../state/places";

/** A link to another module. */
export function Jump({ to, text }: { to: number; text: string }) {
  return (
    <button type="button" class="jump" onClick={() => jump(to)}>
      <bdi>{text}</bdi>
    </button>
  );
}
