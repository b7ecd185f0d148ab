package hub

import "time"

// SetWaits sets how long a route waits before it asks for rings again, and a client for a route before it refuses rings. undo undoes
// that.
func SetWaits(pause, route time.Duration) (undo func()) {
	oldPause, oldRoute := firstPause, routeWait
	firstPause, routeWait = pause, route
	return func() { firstPause, routeWait = oldPause, oldRoute }
}

// SetAnswerTime sets how long the hub has to answer before that is logged. undo undoes that.
func SetAnswerTime(d time.Duration) (undo func()) {
	old := answerTime
	answerTime = d
	return func() { answerTime = old }
}

// SetSettleTime sets how long a hub waits for what the clients of the one before ask for. undo undoes that.
func SetSettleTime(d time.Duration) (undo func()) {
	old := settleTime
	settleTime = d
	return func() { settleTime = old }
}
