package arguments

import (
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// TestDurations: a duration may be a number of seconds without a unit, as in perftest's -D.
func TestDurations(t *testing.T) {
	for arg, want := range map[string]time.Duration{"5": 5 * time.Second, "0.25": 250 * time.Millisecond, "1e-3": time.Millisecond,
		"90s": 90 * time.Second, "1m30s": 90 * time.Second, "0": 0, "-2": -2 * time.Second} {
		var c struct {
			D time.Duration `short:"D"`
		}
		parser, err := kong.New(&c, mappers)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse([]string{"--d=" + arg}); err != nil || c.D != want {
			t.Errorf("%s is %v, %v; want %v", arg, c.D, err, want)
		}
		for _, bad := range []string{"", "NaN", "Inf", "1e300", "5 s", "five"} {
			if _, err := parser.Parse([]string{"--d=" + bad}); err == nil {
				t.Errorf("%q is %v", bad, c.D)
			}
		}
	}
}
