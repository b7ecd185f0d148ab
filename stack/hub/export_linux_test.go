package hub

import "time"

// SetWaits sets two waits: of a route before it requests rings again, and of a client for a route
// before it refuses rings. undo restores the values.
func SetWaits(pause, route time.Duration) (undo func()) {
	oldPause, oldRoute := firstPause, routeWait
	firstPause, routeWait = pause, route
	return func() { firstPause, routeWait = oldPause, oldRoute }
}

// SetAnswerTime sets the time after which a missing answer is logged. undo restores it.
func SetAnswerTime(d time.Duration) (undo func()) {
	old := answerTime
	answerTime = d
	return func() { answerTime = old }
}

// SetSettleTime sets how long a hub waits for the requests of its predecessor's clients. undo
// restores it.
func SetSettleTime(d time.Duration) (undo func()) {
	old := settleTime
	settleTime = d
	return func() { settleTime = old }
}
