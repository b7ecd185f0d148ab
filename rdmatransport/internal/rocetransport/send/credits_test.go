package send

import "testing"

func TestCredits(t *testing.T) {
	var c credits
	if !c.allow(Send, 1000) || c.exceeded(Send, 1000) {
		t.Error("blocked although the peer gave no credits")
	}
	c.begin(Send) // message 1
	c.update(1, 2, true)
	for _, k := range []struct {
		kind           Kind
		begun          uint32
		allow, exceeds bool
	}{{Send, 1, true, false}, {Send, 2, true, false}, {Send, 3, true, true}, {Send, 4, false, true},
		{WriteImm, 4, false, false}, {Write, 9, true, false}, {Read, 9, true, false}} {
		if c.allow(k.kind, k.begun) != k.allow || c.exceeded(k.kind, k.begun+1) != k.exceeds {
			t.Errorf("after %d, of 3 allowed: %+v", k.begun, k)
		}
	}
	c.update(1, 0, true)
	c.begin(Write)
	if c.limit != 4 {
		t.Errorf("limit %d: an older count was accepted, or the message that needs no credit was not", c.limit)
	}
	if c.update(2, 0, false); !c.allow(Send, 100) {
		t.Error("blocked although the peer has ended credits")
	}
}
