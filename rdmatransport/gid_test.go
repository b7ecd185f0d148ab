package rdmatransport_test

import (
	"errors"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
)

// TestGIDChange: indices stay with their addresses, what is gone cannot be used, and an event tells of each change.
func TestGIDChange(t *testing.T) {
	s := newStation(t, pipe.New(), "10.0.0.1/24")
	n := s.host.Interfaces()[0]
	changed := func() {
		t.Helper()
		if e := s.event(); e.Type != verbs.EventGIDChange || e.Port != 1 {
			t.Errorf("got %+v", e)
		}
	}
	for _, a := range []string{"10.0.0.2/24", "10.0.0.3/24"} {
		ok(t, n.AddAddr(a))
		changed()
	}
	third := must(s.dev.QueryGID(1, 3))(t)
	ok(t, n.RemoveAddr(must(s.dev.QueryGID(1, 2))(t).GID.Addr()))
	changed()
	if got := must(s.dev.QueryGID(1, 3))(t); got != third {
		t.Errorf("GID 3 is %v, was %v", got, third)
	}
	if _, err := s.dev.QueryGID(1, 2); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("the hole: %v", err)
	}
	_, err := s.pd.CreateAH(&verbs.AHAttr{PortNum: 1, IsGlobal: true, GRH: verbs.GRH{DGID: third.GID, SGIDIndex: 2}})
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("from the hole: %v", err)
	}
}
