package debianroot

import "testing"

func TestParse(t *testing.T) {
	for version, want := range map[string]string{"12.11": "bookworm", "13.2": "trixie", "forky/sid": "sid", "duke/sid": "sid"} {
		if got, err := parse(version); got != want || err != nil {
			t.Errorf("%q is %q (%v), want %q", version, got, err, want)
		}
	}
	for _, version := range []string{"", "11.9", "1", "sid"} {
		if got, err := parse(version); err == nil {
			t.Errorf("%q is %q", version, got)
		}
	}
}
