package rest

// Vigil knows whether to look for more before a sleep has been worth it. Where what comes comes seldom, or its sender waits for
// this very processor, it never is. The zero Vigil has been lucky. One goroutine at a time calls its methods.
type Vigil struct {
	vain   int // looks since the last that found something; at most patience
	sleeps int // without a look
}

const (
	patience = 4
	seldom   = 32 // without luck, one sleep in so many is preceded by a look all the same
)

// Due tells whether to look before this sleep.
func (v *Vigil) Due() bool {
	if v.vain < patience {
		return true
	}
	v.sleeps++
	if v.sleeps >= seldom {
		v.sleeps = 0
		return true
	}
	return false
}

// Looked takes in what came of a look.
func (v *Vigil) Looked(found bool) {
	if found {
		v.vain = 0
	} else {
		v.vain = min(v.vain+1, patience)
	}
}
