package receive

import "testing"

// Every cell of the table in the comment of verdict.go.
func TestVerdicts(t *testing.T) {
	const (
		ok, nak, nakSent, rnr, rnrSent, refusal, refused = Accepting, NAKDue, NAKSent, RNRDue, RNRSent, RefusalDue, Refused
	)
	table := map[Verdict][verdictEvents]Verdict{
		//       turn gap  not ready refusal sent   withdrawn
		ok:      {ok, nak, rnr, refusal, ok, ok},
		nak:     {ok, nak, rnr, refusal, nakSent, nak},
		nakSent: {ok, nak, rnr, refusal, nakSent, nakSent},
		rnr:     {ok, nak, rnr, refusal, rnrSent, rnr},
		rnrSent: {ok, nak, rnr, refusal, rnrSent, rnrSent},
		refusal: {refusal, refusal, refusal, refusal, refused, ok},
		refused: {refused, refused, refused, refused, refused, refused},
	}
	if len(table) != verdicts {
		t.Fatalf("%d verdicts in the table, there are %d", len(table), verdicts)
	}
	for from, row := range table {
		for e, to := range row {
			v := verdict{now: from}
			if v.on(verdictEvent(e)); v.now != to {
				t.Errorf("%v, event %d: %v, want %v", from, e, v.now, to)
			}
		}
	}
}

// The queries on each verdict.
func TestVerdictQuestions(t *testing.T) {
	for v, want := range map[Verdict]struct{ due, refused, waits bool }{
		Accepting:  {},
		NAKDue:     {due: true},
		NAKSent:    {},
		RNRDue:     {due: true, waits: true},
		RNRSent:    {waits: true},
		RefusalDue: {due: true, refused: true},
		Refused:    {refused: true},
	} {
		at := verdict{now: v}
		if at.due() != want.due || at.refused() != want.refused || at.waitsForReceive() != want.waits {
			t.Errorf("%v: due %v, refused %v, waits for a receive request %v", v, at.due(), at.refused(), at.waitsForReceive())
		}
	}
}
