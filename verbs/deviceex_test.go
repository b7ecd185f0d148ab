package verbs_test

import (
	"errors"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

func TestQueryDeviceEx(t *testing.T) {
	r := newRig(t)
	a := r.dev.QueryDeviceEx()
	if a.MaxQP != 64 || !a.ODP.Support || a.ODP.Implicit || a.PhysPortCntEx != 2 || a.CQModeration.Count != 65535 {
		t.Errorf("got %+v", a)
	}
	if k := must(r.dev.QueryPKey(1, 0))(t); k != 0xffff {
		t.Errorf("P_Key %#x", k)
	}
	for _, err := range []error{
		func() error { _, err := r.dev.QueryPKey(1, 1); return err }(),
		func() error { _, err := r.dev.QueryPKey(9, 0); return err }(),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	}
}
