package attack

// Predicted returns how many numbers of `bits` bits an attacker predicts who knows those before,
// and tries the numbers within `reach` of the last one, and within `reach` of where the last
// distance leads.
func Predicted(numbers []uint32, bits int, reach uint32) (n int) {
	mask := uint32(1)<<bits - 1
	near := func(a, b uint32) bool { return (a-b)&mask <= reach || (b-a)&mask <= reach }
	for i := 2; i < len(numbers); i++ {
		last, before := numbers[i-1], numbers[i-2]
		if near(numbers[i], last) || near(numbers[i], last+last-before) {
			n++
		}
	}
	return n
}
