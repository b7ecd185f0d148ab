package trace_test

import (
	"log/slog"
	"os"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/trace"
)

// What Logger writes of an event. A device calls it with each event of its QPs, if it is opened
// with rdmatransport.Config{Trace: trace.Logger(logger)}.
func ExampleLogger() {
	shorten := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.String("at", a.Value.Time().Format("15:04:05"))
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: shorten}))
	sink := trace.Logger(logger)
	sink(trace.Event{
		Time: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), Transport: "RoCE", QPN: 0x1234,
		Type: trace.RNRWaitStarted, PSN: 77, Duration: 10240 * time.Microsecond,
	})
	// Output:
	// at=12:00:00 level=DEBUG msg="RNR wait started" transport=RoCE qpn=0x1234 psn=77 duration=10.24ms
}
