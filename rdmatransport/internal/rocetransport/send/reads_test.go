package send

import "testing"

func TestReads(t *testing.T) {
	var r reads
	if r.outstanding() != 0 || r.repeats() || r.bound(5, 9) != 9 {
		t.Error("there is a READ before the first")
	}
	r.requested(10, 4)
	r.requested(14, 1)
	r.requested(15, 8)
	if r.outstanding() != 3 || r.repeats() {
		t.Errorf("%d outstanding", r.outstanding())
	}
	r.acked(12)
	if r.outstanding() != 3 {
		t.Error("a part of an answer counts as all of it")
	}
	r.acked(15)
	if r.outstanding() != 1 || len(r.all()) != 1 {
		t.Errorf("%d outstanding", r.outstanding())
	}
	// A retransmitted request has the same bound as before.
	if r.rewind(); r.outstanding() != 0 || !r.repeats() || r.bound(17, 100) != 6 {
		t.Errorf("%d packets are requested from 17 on", r.bound(17, 100))
	}
	r.requested(17, 6)
	if r.repeats() || r.bound(23, 100) != 100 || len(r.all()) != 1 {
		t.Error("the next has the bound of another")
	}
	r.rewind()
	if r.resume(); r.outstanding() != 1 {
		t.Error("READs on the scoreboard are not outstanding")
	}
}
