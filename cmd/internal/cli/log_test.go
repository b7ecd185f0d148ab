package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLog: a message that comes without end does not fill the log, nor does it keep others out.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := (&Env{Stderr: &out}).Log(slog.LevelInfo)
		for i := range 10_000 {
			log.With("peer", i).Warn("failed")
			time.Sleep(time.Millisecond)
		}
		log.Info("done")
		if n, want := strings.Count(out.String(), "msg=failed"), logBurst+int(10*time.Second/logInterval); n < want-1 || n > want+1 {
			t.Errorf("%d lines in 10 s, want %d", n, want)
		}
		if !strings.Contains(out.String(), "peer=9999") && !strings.Contains(out.String(), "left_out=99\n") {
			t.Errorf("nothing says what was left out:\n%s", out.Bytes()[out.Len()-500:])
		}
		if !strings.Contains(out.String(), "msg=done") {
			t.Error("another message is missing")
		}
		out.Reset()
		time.Sleep(logBurst * logInterval)
		for range logBurst {
			log.Warn("failed")
		}
		if n := strings.Count(out.String(), "\n"); n != logBurst {
			t.Errorf("%d lines after a pause", n)
		}
		log = (&Env{Stderr: &out}).Log(slog.LevelDebug)
		out.Reset()
		for range 2 * logBurst {
			log.Debug("more")
		}
		if n := strings.Count(out.String(), "\n"); n != 2*logBurst {
			t.Errorf("%d lines for debugging", n)
		}
	})
}
