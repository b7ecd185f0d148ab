package trace

import (
	"context"
	"fmt"
	"log/slog"
)

// Logger returns a [Sink] that writes each event to a logger, at level debug. The message is the
// type's name; the attributes are transport, qpn and the fields that the type sets. It writes
// nothing if the logger's handler does not handle level debug.
func Logger(l *slog.Logger) Sink {
	h := l.Handler()
	return func(e Event) {
		ctx := context.Background()
		if !h.Enabled(ctx, slog.LevelDebug) {
			return
		}
		r := slog.NewRecord(e.Time, slog.LevelDebug, e.Type.String(), 0)
		r.AddAttrs(slog.String("transport", e.Transport), slog.String("qpn", fmt.Sprintf("%#x", e.QPN)))
		e.addTo(&r)
		_ = h.Handle(ctx, r) // like slog.Logger
	}
}

// addTo adds the fields that the event's type sets.
func (e *Event) addTo(r *slog.Record) {
	switch e.Type {
	case QPState, SendMode, SendPhase:
		r.AddAttrs(slog.String("from", e.From), slog.String("to", e.To))
	case PacketsLost:
		r.AddAttrs(e.psn(), slog.Uint64("packets", uint64(e.Packets)))
	case ProbeSent, RetransmissionTimeout, RNRWaitEnded:
		r.AddAttrs(e.psn())
	case RNRWaitStarted:
		r.AddAttrs(e.psn(), slog.Duration("duration", e.Duration))
	case NAKSent, NAKReceived:
		r.AddAttrs(e.psn(), slog.String("detail", e.Detail))
	case Window:
		r.AddAttrs(slog.Uint64("packets", uint64(e.Packets)))
	case AlarmSet:
		r.AddAttrs(slog.String("detail", e.Detail), slog.Duration("duration", e.Duration))
	case AlarmFired, MPANegotiated, TerminateSent, TerminateReceived, FaultInjected:
		r.AddAttrs(slog.String("detail", e.Detail))
	case MPAFailed:
		r.AddAttrs(slog.String("detail", e.Detail), slog.Any("err", e.Err))
	case EventsLost:
		r.AddAttrs(slog.Uint64("events", uint64(e.Packets)))
	case StreamLost:
		r.AddAttrs(slog.Any("err", e.Err))
	}
}

func (e *Event) psn() slog.Attr { return slog.Uint64("psn", uint64(e.PSN)) }
