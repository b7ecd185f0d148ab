package rocev2

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
)

// entry is a case before it is bound to a target.
type entry struct {
	id, statement, source string
	run                   func(*tester)
}

// Cases returns the cases of RoCEv2, to be run against env. If env is nil, they can only be listed.
func Cases(env *Env) []suite.Case {
	var all []suite.Case
	for _, part := range [][]entry{headers, sequence, writes, sends, reads, atomics, refusals, requester, completer, credits, requests,
		responses, retries, datagrams, congestion, connections, endings, calls} {
		for _, e := range part {
			all = append(all, suite.Case{ID: e.id, Statement: e.statement, Source: e.source,
				Run: func(t *suite.T) { e.run(&tester{T: t, Env: env}) }})
		}
	}
	return all
}
