package iwarp

import (
	"strings"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
)

// entry is a case before it is bound to a target.
type entry struct {
	id, statement, source string
	run                   func(*tester)
}

// Cases returns the cases of iWARP, to be run against env. If env is nil, they can only be listed.
func Cases(env *Env) []suite.Case {
	var all []suite.Case
	for _, part := range [][]entry{startup, enhanced, initiator, framingCases, setUps, closing, ddpCases, rdmapCases, reads, atomics,
		terminates, requester} {
		for _, e := range part {
			all = append(all, suite.Case{ID: e.id, Statement: e.statement, Source: e.source,
				Run: func(t *suite.T) {
					if strings.Contains(e.source, "RFC 7306") && !env.Control.Hello.RFC7306 {
						t.Skipf("the target reports that it does not implement RFC 7306")
					}
					e.run(&tester{T: t, Env: env})
				}})
		}
	}
	return all
}
