package trace_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/trace"
)

// every has an event of each type, with all fields set, and the output of Logger after the
// transport and the QP.
var every = map[trace.Type]string{
	trace.QPState:               `"QP state" transport=RoCE qpn=0x11 from=A to=B`,
	trace.SendMode:              `"send mode" transport=RoCE qpn=0x11 from=A to=B`,
	trace.PacketsLost:           `"packets lost" transport=RoCE qpn=0x11 psn=5 packets=6`,
	trace.ProbeSent:             `"probe sent" transport=RoCE qpn=0x11 psn=5`,
	trace.RetransmissionTimeout: `"retransmission timeout" transport=RoCE qpn=0x11 psn=5`,
	trace.RNRWaitStarted:        `"RNR wait started" transport=RoCE qpn=0x11 psn=5 duration=1ms`,
	trace.RNRWaitEnded:          `"RNR wait ended" transport=RoCE qpn=0x11 psn=5`,
	trace.NAKSent:               `"NAK sent" transport=RoCE qpn=0x11 psn=5 detail=D`,
	trace.NAKReceived:           `"NAK received" transport=RoCE qpn=0x11 psn=5 detail=D`,
	trace.Window:                `window transport=RoCE qpn=0x11 packets=6`,
	trace.AlarmSet:              `"alarm set" transport=RoCE qpn=0x11 detail=D duration=1ms`,
	trace.AlarmFired:            `"alarm fired" transport=RoCE qpn=0x11 detail=D`,
	trace.SendPhase:             `"send phase" transport=RoCE qpn=0x11 from=A to=B`,
	trace.MPANegotiated:         `"MPA negotiated" transport=RoCE qpn=0x11 detail=D`,
	trace.MPAFailed:             `"MPA failed" transport=RoCE qpn=0x11 detail=D err=why`,
	trace.TerminateSent:         `"Terminate sent" transport=RoCE qpn=0x11 detail=D`,
	trace.TerminateReceived:     `"Terminate received" transport=RoCE qpn=0x11 detail=D`,
	trace.StreamLost:            `"stream lost" transport=RoCE qpn=0x11 err=why`,
	trace.FaultInjected:         `"fault injected" transport=RoCE qpn=0x11 detail=D`,
	trace.EventsLost:            `"events lost" transport=RoCE qpn=0x11 events=6`,
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	event := func(of trace.Type) trace.Event {
		return trace.Event{
			Time: at, Type: of, Transport: "RoCE", QPN: 0x11, From: "A", To: "B", PSN: 5, Packets: 6, Duration: time.Millisecond,
			Detail: "D", Err: errors.New("why"),
		}
	}
	debug := trace.Logger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	info := trace.Logger(slog.New(slog.NewTextHandler(&out, nil)))
	for of, want := range every {
		out.Reset()
		if info(event(of)); out.Len() != 0 {
			t.Errorf("%v: level info has %s", of, &out)
		}
		debug(event(of))
		if want = "time=2026-01-02T03:04:05.000Z level=DEBUG msg=" + want; strings.TrimSpace(out.String()) != want {
			t.Errorf("%v:\n\t%s\nwant\n\t%s", of, strings.TrimSpace(out.String()), want)
		}
	}
	// All types have a name.
	const unknown = "unknown event"
	for of := range trace.Type(len(every)) + 2 {
		if _, ok := every[of]; ok == (of.String() == unknown) {
			t.Errorf("type %d is called %q", of, of)
		}
	}
}
