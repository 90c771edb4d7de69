package failover_test

import (
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/clientlib/failover"
)

// Symptom: a frame that the hub takes was refused, and the call of a publisher ended for it.
// Cause: what bounds the messages that are received bounded those that are sent, too.
func TestMaxMessageBytesBoundsWhatIsReceivedAlone(t *testing.T) {
	path, database := socketIn(t), migrated(t)
	startHub(t, database, path)
	for _, mode := range []failover.Mode{failover.HubOnly, failover.OwnOnly} {
		w := newWorker(t, path, database, func(cfg *failover.Config) {
			cfg.Mode, cfg.MaxMessageBytes = mode, 1<<10
		})
		if _, err := w.Publish(patient(t), publishRequest(strings.Repeat("x", 100<<10))); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
}
