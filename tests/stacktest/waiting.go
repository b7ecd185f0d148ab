package stacktest

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// AwaitWaiting waits until a goroutine in a function is in a state of the scheduler, as a stack
// trace shows them: "kernel.(*stream).Wait" is in "IO wait". A call that waits has no other trace.
func AwaitWaiting(t testing.TB, function, state string) {
	t.Helper()
	all := make([]byte, 16<<20)
	for give := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		traces := string(all[:runtime.Stack(all, true)])
		for trace := range strings.SplitSeq(traces, "\n\n") {
			first, _, _ := strings.Cut(trace, "\n")
			if strings.Contains(first, "["+state) && strings.Contains(trace, function+"(") {
				return
			}
		}
		if time.Now().After(give) {
			t.Fatalf("no goroutine in %s is in %q:\n%s", function, state, traces)
		}
	}
}
