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
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug}))
	sink := trace.Logger(logger)
	sink(trace.Event{
		Time: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), Transport: "RoCE", QPN: 0x1234,
		Type: trace.RNRWaitStarted, PSN: 77, Duration: 10240 * time.Microsecond,
	})
	// Output: time=2026-11-22T12:00:00.000Z level=DEBUG msg="RNR wait started" transport=RoCE
	// qpn=0x1234 psn=77 duration=10.24ms
}
