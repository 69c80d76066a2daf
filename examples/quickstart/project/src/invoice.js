/**
 * What an invoice comes to.
 * @param lines `{ cents, quantity }` each; cents are whole numbers
 * @param discountPercent off the sum; the result is rounded to the nearest cent, half up
 */
export function total(lines, discountPercent = 0) {
  let sum = 0;
  for (let i = 1; i < lines.length; i++) sum += lines[i].cents * lines[i].quantity;
  return Math.floor((sum * (100 - discountPercent)) / 100);
}
