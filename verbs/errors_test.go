package verbs_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestErrorText: a provider's error for the same operation is wrapped, and its text does not repeat
// the operation.
func TestErrorText(t *testing.T) {
	plain := errors.New("no such cable")
	for _, c := range []struct {
		err  error // of the provider
		want string
	}{
		{verbs.Errorf(verbs.ErrInvalid, "modify QP", "LLPStream nil is no stream"), "modify QP 0x10: LLPStream nil is no stream"},
		{verbs.Errorf(verbs.ErrBusy, "modify QP 0x10", "in use"), "modify QP 0x10: in use"},
		{verbs.Errorf(verbs.ErrBusy, "modify QP 0x10 of loop0", "in use"), "modify QP 0x10 of loop0: in use"},
		{&verbs.Error{Op: "modify QP", Err: verbs.Errorf(plain, "modify QP", "")}, "modify QP 0x10: no such cable"},
		{verbs.Errorf(verbs.ErrBusy, "modify", "in use"), "modify QP 0x10: in use"},
		{verbs.Errorf(syscall.ENETUNREACH, "route", "10.0.0.9 cannot be reached"), "modify QP 0x10: route: 10.0.0.9 cannot be reached"},
		{verbs.Errorf(verbs.ErrBusy, "mod", "in use"), "modify QP 0x10: mod: in use"},
		{plain, "modify QP 0x10: no such cable"},
	} {
		r := newRig(t)
		r.lq.modifyErr = c.err
		err := r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
		if !errors.Is(err, c.err) {
			t.Errorf("%v does not wrap the provider's error %v", err, c.err)
		}
		if err == nil || err.Error() != c.want {
			t.Errorf("error %q, want %q", err, c.want)
		}
	}
}
