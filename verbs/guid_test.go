package verbs_test

import (
	"strings"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestGUID: both forms of rdma-core's programs are parsed, and the form with colons is printed.
func TestGUID(t *testing.T) {
	const want = verbs.GUID(0x0002_c903_00ab_cdef)
	for _, text := range []string{"0002:c903:00ab:cdef", "0002c90300abcdef", "0x0002C90300ABCDEF"} {
		if g, err := verbs.ParseGUID(text); err != nil || g != want {
			t.Errorf("%s: %#x (%v), want %#x", text, uint64(g), err, uint64(want))
		}
	}
	if got := want.String(); got != "0002:c903:00ab:cdef" {
		t.Errorf("%#x is printed as %s", uint64(want), got)
	}
	for _, text := range []string{"", "x", "0002:c903:00ab", "0002:c903:00ab:cdef:0000", "2:c903:ab:cdef", "0002c90300abcde",
		"0002:c90300abcdef", "-002c90300abcdef", "0x0002:c903:00ab:cdef"} {
		if _, err := verbs.ParseGUID(text); err == nil || !strings.Contains(err.Error(), `"`+text+`" is not a GUID: must be like`) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
